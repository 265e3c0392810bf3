"""The tokens of a node's KV pool: those that its requests need, within its memory. Pure."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cosine_protocol.errors import UsageError

USUAL_TOKENS: Final = 2048
"""Tokens of the prompt and text of a request; longer ones take the room of others."""
SHARED_MEMORY_PART: Final = 0.25
"""Share of a machine's free memory, which other programs need too."""
CARD_MEMORY_PART: Final = 0.85
"""Share of a verifier's card; the rest is for activations and logits of passes."""
WINDOW_SPARE_TOKENS: Final = 256
"""Tokens of a request in layers with a window in addition to the window, in partly used pages."""
PASS_TOKENS: Final = 2560
"""Maximum tokens of all requests in a pass: 2,048 of prompts, 512 of decoding and drafts."""
BYTES: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""The units of a size, in upper case."""
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Memory of a token in a KV pool: in all layers, and in those that look back only `window_tokens`."""

    total: int
    windowed: int = 0
    window_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTokens:
    """The tokens of a pool, and those in its layers with a window; None if they hold all."""

    tokens: int
    windowed: int | None = None

    def bytes_of(self, token: TokenBytes) -> int:
        """Return the memory of such a pool."""
        windowed = self.tokens if self.windowed is None else self.windowed
        return self.tokens * (token.total - token.windowed) + windowed * token.windowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The requested size of a KV pool for `requests` requests at once.

    It is `exact_tokens`, `size_bytes`, or `part` of the memory that is free after loading the weights. Otherwise it
    is the size for requests of usual length; for a verifier at least for one that fills the context, and on a card
    for all of them, within a share of the free memory that leaves room for other programs. `share` is the part of
    that size.
    """

    requests: int = 16
    is_verifier: bool = False
    exact_tokens: int | None = None
    size_bytes: int | None = None
    part: float | None = None
    share: float = 1.0

    def tokens(
        self, token: TokenBytes, *, context_tokens: int, free_bytes: int | None, on_card: bool
    ) -> PoolTokens:
        """Return the tokens of the pool, given the memory of each; `free_bytes` is None if unknown.

        Raises `UsageError` if that is not enough for a single request of usual length.
        """
        if self.exact_tokens is not None:
            return PoolTokens(tokens=self.exact_tokens)
        usual_tokens = min(context_tokens, USUAL_TOKENS)
        wanted_tokens, memory_part = self.requests * usual_tokens, SHARED_MEMORY_PART
        if self.is_verifier and on_card:
            wanted_tokens, memory_part = self.requests * context_tokens, CARD_MEMORY_PART
        elif self.is_verifier:
            wanted_tokens = max(wanted_tokens, context_tokens)
        wanted_tokens, memory_part = max(usual_tokens, int(self.share * wanted_tokens)), self.share * memory_part
        if self.size_bytes is not None:
            tokens = self._tokens_within(self.size_bytes, token, context_tokens)
        elif free_bytes is None:
            tokens = max(usual_tokens, int(self.share * self.requests * usual_tokens))
        elif self.part is not None:
            tokens = self._tokens_within(int(self.part * free_bytes), token, context_tokens)
        else:
            within = self._tokens_within(int(memory_part * free_bytes), token, context_tokens)
            tokens = min(wanted_tokens, within)
        if tokens < usual_tokens:
            raise UsageError(
                f"The KV cache would hold {tokens} tokens, at {token.total} bytes each, and one request takes "
                f"{usual_tokens}; give it more with --kv-memory, free memory, or choose a smaller model or --dtype."
            )
        windowed = self._windowed_tokens(token)
        return PoolTokens(tokens=tokens, windowed=windowed if windowed is not None and windowed < tokens else None)

    def _windowed_tokens(self, token: TokenBytes) -> int | None:
        """Return the maximum number of tokens needed by layers with a window; None for all.

        A drafter feeds a prompt in one pass, all of which must be held.
        """
        if not (self.is_verifier and token.windowed):
            return None
        return self.requests * (token.window_tokens + WINDOW_SPARE_TOKENS) + PASS_TOKENS

    def _tokens_within(self, size_bytes: int, token: TokenBytes, context_tokens: int) -> int:
        """Return the tokens of the largest pool of that size."""
        windowed = self._windowed_tokens(token)
        if windowed is None or size_bytes <= windowed * token.total:
            return size_bytes // token.total
        rest_bytes, full_bytes = size_bytes - windowed * token.total, token.total - token.windowed
        # If all layers have a window, a request needs no more at any length.
        return windowed + rest_bytes // full_bytes if full_bytes else max(windowed, self.requests * context_tokens)


def parse_pool_size(text: str, *, requests: int, is_verifier: bool) -> PoolSize:
    """Parse a size such as 8GiB or 500MB, a part of the free memory such as 0.5, or auto. Raises `UsageError`."""
    auto = PoolSize(requests=requests, is_verifier=is_verifier)
    size_bytes, part = parse_memory(text, option="--kv-memory")
    return replace(auto, size_bytes=size_bytes, part=part)


def parse_memory(text: str, *, option: str) -> tuple[int | None, float | None]:
    """Parse bytes such as 8GiB or 500MB, or a part of the free memory such as 0.5; neither for auto.

    Raises `UsageError` with the name of the option.
    """
    if text == AUTO:
        return None, None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]{0,3})", text.strip(), re.IGNORECASE | re.ASCII)
    number, unit = (float(found[1]), found[2].upper()) if found else (0.0, "")
    if not unit and 0.0 < number <= 1.0:
        return None, number
    size_bytes = int(number * BYTES.get(unit, 0))
    if not size_bytes:
        raise UsageError(f"{option} takes a size such as 8GiB, a part up to 1 such as 0.5, or auto, not {text!r}.")
    return size_bytes, None


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the free memory of the machine, or of the container if less; None if the system does not report it.

    `cgroup` is the control group of a container, as it sees itself (cgroup v2).
    """
    try:
        lines = meminfo.read_text("ascii").splitlines()
        free_bytes = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    # Without a limit a container reports "max".
    with suppress(OSError, ValueError, KeyError):
        limit_bytes = int((cgroup / "memory.max").read_text("ascii"))
        used_bytes = int((cgroup / "memory.current").read_text("ascii"))
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text("ascii").splitlines())
        # Pages of files that were only read can be reclaimed.
        used_bytes -= int(counts["inactive_file"])
        free_bytes = min(free_bytes, max(0, limit_bytes - used_bytes))
    return free_bytes
