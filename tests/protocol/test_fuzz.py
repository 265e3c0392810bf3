"""Hostile bytes: whatever arrives, only the project's own errors escape."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final

import pytest

from cosine_protocol import messages as m
from cosine_protocol.codec import TAGS, decode, decode_body, encode, encode_body
from cosine_protocol.errors import CosineError
from cosine_protocol.framing import FrameDecoder, encode_frame
from cosine_protocol.identity import Identity, public_key_of
from cosine_protocol.limits import DIGEST_BYTES
from cosine_protocol.nodes import Node, NodeBlock
from cosine_protocol.records import SignedRecord, open_record, seal_record
from cosine_protocol.request import Request

from .samples import NOW_S, OWNER, record_of, request_of
from .strategies import BODIES, least_of

CORPUS: Final = Path(__file__).parent / "corpus"
KEY: Final = "cosine/test/verifier/someone/model/"
BINDING: Final = sha256(KEY.encode()).digest()[:DIGEST_BYTES]
ROUNDS: Final = 3000
MAX_EDITS: Final = 4
MAX_RANDOM_BYTES: Final = 80
# Bytes that begin every msgpack type, and lengths that lie.
NASTY: Final = bytes.fromhex("7f80818f90919fa0bfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d3d4d8d9dadbdcdddedfe0ff")
NODES: Final = NodeBlock.of([Node(-1, 7, 0.5), Node(0, 8, 0.25), Node(0, 9, 0.25)])


def _decode_stream(data: bytes) -> None:
    for body in FrameDecoder().feed(data):
        decode(body)


def _decode_every_body(data: bytes) -> None:
    refused: CosineError | None = None
    for cls in (*BODIES, Request, NodeBlock):
        try:
            decode_body(cls, data)
        except CosineError as error:
            refused = error
    if refused is not None:
        raise refused


def _open(data: bytes) -> None:
    open_record(data, key=KEY, owner=OWNER.peer_id, now_s=NOW_S)


def _open_signed(data: bytes) -> None:
    """A record whose owner signs whatever it likes."""
    signature = OWNER.sign(kind="record", digest=BINDING, body=data)
    _open(encode_body(SignedRecord(data, signature)))


def _read_peer_id(data: bytes) -> None:
    public_key_of(data.decode("latin-1"))


def _messages() -> list[m.Message]:
    number, digest = 3, bytes(range(16))
    body = encode_body(m.Draft(number, 1, digest, 0, NODES))
    return [
        *(least_of(cls) for cls in TAGS.values()),
        m.Open(number, request_of(), (5, 6), m.Pacing.FREE, (OWNER.peer_id,)),
        m.Tree(number, digest, 2, NODES, bytes([1, 1, 0])),
        m.Commit(number, 2, (7, 8), digest, b"\1\0", m.PassStats(3, 0, 900, 10)),
        m.Fragment(body, OWNER.sign(kind="fragment", digest=digest, body=body)),
    ]


def _bodies() -> list[bytes]:
    account = m.Account(3, m.FinishReason.EOS, 9, bytes(16), (4, 5))
    return [encode_body(body) for body in (m.Draft(3, 1, bytes(16), 0, NODES), account, record_of())]


SEALED: Final = seal_record(record_of(), OWNER, key=KEY)
TARGETS: Final[dict[str, tuple[Callable[[bytes], object], list[bytes]]]] = {
    "stream": (_decode_stream, [encode_frame(encode(message)) for message in _messages()]),
    "message": (decode, [encode(message) for message in _messages()]),
    "body": (_decode_every_body, [*_bodies(), SEALED]),
    "record": (_open, [SEALED]),
    "signed record": (_open_signed, [encode_body(record_of())]),
    "key file": (Identity.from_file_bytes, [OWNER.to_file_bytes()]),
    "peer id": (_read_peer_id, [OWNER.peer_id.encode()]),
}


def _mutated(random: Random, data: bytes) -> bytes:
    """A few edits: flips, nasty bytes, cuts, repeats, insertions."""
    for _ in range(random.randint(1, MAX_EDITS)):
        at = random.randint(0, len(data))
        to = random.randint(at, len(data))
        fresh = random.choice(
            (
                bytes([random.choice(NASTY)]),
                random.randbytes(random.randint(0, 4)),
                data[at:to] * 2,
                bytes([data[at] ^ 1 << random.randrange(8)]) if at < len(data) else b"",
            )
        )
        skipped = random.choice((0, 1, 1, len(fresh), to - at))
        data = data[:at] + fresh + data[at + skipped :]
    return data


def _cases(name: str, seeds: list[bytes]) -> Iterator[tuple[str, bytes]]:
    for number in range(ROUNDS):
        seed = f"{name}/{number}"
        random = Random(seed)
        if number % 4:
            yield seed, _mutated(random, random.choice(seeds))
        elif number % 8:
            yield seed, random.randbytes(random.randint(0, MAX_RANDOM_BYTES))
        else:
            yield seed, bytes(random.choices(NASTY, k=random.randint(0, MAX_RANDOM_BYTES)))


def _survives(check: Callable[[bytes], object], data: bytes, seed: str) -> bool:
    """Whether `data` was accepted. Fails the test where anything but our own error escapes."""
    try:
        check(data)
    except CosineError:
        return False
    except Exception as error:
        pytest.fail(f"seed {seed!r}, data {data.hex()}: {error!r}")
    return True


@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_errors_escape_from_mutated_bytes(name: str) -> None:
    check, seeds = TARGETS[name]
    outcomes = [_survives(check, data, seed) for seed, data in _cases(name, seeds)]
    assert not all(outcomes)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "body"])
def test_every_seed_is_valid_before_it_is_mutated(name: str) -> None:
    check, seeds = TARGETS[name]
    for seed in seeds:
        check(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_errors_escape_from_the_corpus(name: str) -> None:
    check, _ = TARGETS[name]
    for path in sorted(CORPUS.glob("*.bin")):
        _survives(check, path.read_bytes(), path.name)


def test_the_corpus_is_there() -> None:
    assert len(list(CORPUS.glob("*.bin"))) >= 10
