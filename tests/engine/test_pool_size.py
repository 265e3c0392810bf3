"""A KV pool has the size that requests need, within the free memory, or the given one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.pool_size import (
    CARD_MEMORY_PART,
    PASS_TOKENS,
    SHARED_MEMORY_PART,
    USUAL_TOKENS,
    PoolSize,
    TokenBytes,
    free_memory_bytes,
    parse_pool_size,
)
from cosine_protocol.errors import UsageError

MIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  90000 kB\nMemAvailable:       71680 kB\n")
    return file


def container(folder: Path, *, limit: str, used_bytes: int, read_bytes: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used_bytes}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {read_bytes}\n")
    return folder


@pytest.mark.parametrize(
    ("limit", "free_bytes"),
    [(str(40 * MIB), 25 * MIB), (str(10 * MIB), 0), (str(400 * MIB), 70 * MIB), ("max", 70 * MIB), ("?", 70 * MIB)],
)
def test_a_container_may_have_less(tmp_path: Path, meminfo: Path, limit: str, free_bytes: int) -> None:
    # Of 20 MiB used 5 are files that were read, which can be reclaimed.
    group = container(tmp_path, limit=limit, used_bytes=20 * MIB, read_bytes=5 * MIB)
    assert free_memory_bytes(meminfo, group) == free_bytes


GIB = 1 << 30
TOKEN_BYTES = 46_080
"""A token of SmolLM2-135M in float32: 30 layers, 3 key-value heads of 64."""
CONTEXT_TOKENS = 8192


def tokens(size: PoolSize, *, free_bytes: int | None = 1 << 50, on_card: bool = False) -> int:
    return size.tokens(
        TokenBytes(TOKEN_BYTES), context_tokens=CONTEXT_TOKENS, free_bytes=free_bytes, on_card=on_card
    ).tokens


SHARED, CARD = int(SHARED_MEMORY_PART * GIB) // TOKEN_BYTES, int(CARD_MEMORY_PART * GIB) // TOKEN_BYTES


@pytest.mark.parametrize("on_card", [False, True])
@pytest.mark.parametrize("is_verifier", [False, True])
def test_a_node_may_take_a_share_of_what_is_usual_but_room_for_one_request(
    is_verifier: bool, on_card: bool
) -> None:
    whole, half, little = (
        tokens(PoolSize(is_verifier=is_verifier, share=share), on_card=on_card) for share in (1.0, 0.5, 0.001)
    )
    assert (half, little) == (whole // 2, USUAL_TOKENS)
    few = PoolSize(is_verifier=is_verifier, share=0.5)
    assert tokens(few, free_bytes=GIB, on_card=on_card) == (CARD if is_verifier and on_card else SHARED) // 2


@pytest.mark.parametrize(
    ("size", "free_bytes", "on_card", "expected"),
    [
        # A drafter takes usual requests, a verifier a whole context, and on a card one for each request.
        (PoolSize(requests=16), 1 << 50, False, 16 * USUAL_TOKENS),
        (PoolSize(requests=2, is_verifier=True), 1 << 50, False, CONTEXT_TOKENS),
        (PoolSize(requests=2, is_verifier=True), 1 << 50, True, 2 * CONTEXT_TOKENS),
        # With little memory there is room left for others.
        (PoolSize(requests=1000), GIB, False, SHARED),
        (PoolSize(requests=1000, is_verifier=True), GIB, False, SHARED),
        (PoolSize(requests=1000, is_verifier=True), GIB, True, CARD),
        # A given size is used; if the free memory is unknown, requests of usual length fit.
        (PoolSize(requests=1, size_bytes=2 * GIB), None, False, 2 * GIB // TOKEN_BYTES),
        (PoolSize(requests=1, part=0.5), GIB, False, GIB // 2 // TOKEN_BYTES),
        (PoolSize(requests=3, is_verifier=True), None, False, 3 * USUAL_TOKENS),
    ],
)
def test_a_pool_takes_what_requests_need_as_far_as_memory_goes(
    size: PoolSize, free_bytes: int | None, on_card: bool, expected: int
) -> None:
    assert tokens(size, free_bytes=free_bytes, on_card=on_card) == expected


@pytest.mark.parametrize("text", ["auto", "1MiB"])
def test_too_little_for_one_request_is_refused(text: str) -> None:
    size = parse_pool_size(text, requests=16, is_verifier=True)
    with pytest.raises(UsageError, match=r"one request takes 2048; give it more with --kv-memory"):
        tokens(size, free_bytes=100 << 20)


TOKENS = st.builds(
    lambda full, windowed, window: TokenBytes(full + windowed, windowed, window if windowed else 0),
    st.integers(0, 1 << 20),
    st.integers(1, 1 << 20),
    st.integers(1, 1 << 15),
) | st.builds(TokenBytes, st.integers(1, 1 << 20))


@given(st.integers(1, 64), st.booleans(), st.booleans(), TOKENS, st.integers(1, 1 << 20), st.integers(1, 1 << 40))
def test_a_pool_fits_into_what_is_free_and_holds_a_request(
    requests: int, is_verifier: bool, on_card: bool, token: TokenBytes, context_tokens: int, free_bytes: int
) -> None:
    size = PoolSize(requests=requests, is_verifier=is_verifier)
    try:
        found = size.tokens(token, context_tokens=context_tokens, free_bytes=free_bytes, on_card=on_card)
    except UsageError:
        return
    assert min(context_tokens, USUAL_TOKENS) <= found.tokens <= requests * context_tokens
    assert found.bytes_of(token) <= free_bytes
    if found.windowed is not None:
        assert is_verifier
        assert found.tokens > found.windowed >= requests * token.window_tokens + PASS_TOKENS


@pytest.mark.parametrize(
    ("text", "size_bytes", "part"),
    [
        ("8GiB", 8 * GIB, None),
        ("1.5 gib", 3 * GIB // 2, None),
        ("500MB", 500_000_000, None),
        ("0.9", None, 0.9),
        ("auto", None, None),
    ],
)
def test_sizes_and_parts_are_read(text: str, size_bytes: int | None, part: float | None) -> None:
    found = parse_pool_size(text, requests=4, is_verifier=True)
    assert found == PoolSize(requests=4, is_verifier=True, size_bytes=size_bytes, part=part)


@pytest.mark.parametrize("text", ["", "-1GiB", "1.2", "8G", "0.1B", "nan", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--kv-memory takes a size such as 8GiB"):
        parse_pool_size(text, requests=4, is_verifier=True)
