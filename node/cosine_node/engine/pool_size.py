"""The tokens that a node's KV pool holds: what its requests need, as far as its memory goes. Pure."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cosine_protocol.errors import UsageError

USUAL_TOKENS: Final = 2048
"""Prompt and text of a request; longer ones take the room of others."""
SHARED_MEMORY_PART: Final = 0.25
"""Of a machine's free memory, which its user and other programs want too."""
CARD_MEMORY_PART: Final = 0.85
"""Of a verifier's card; the rest is for passes, whose activations and logits come and go."""
WINDOW_SPARE_TOKENS: Final = 256
"""What a request holds in layers with a window besides the window, in pages that are not used up."""
PASS_TOKENS: Final = 2560
"""What all requests together feed in a pass at most: 2,048 tokens of prompts, 512 that decode and drafts."""
BYTES: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""The units of a size, in upper case."""
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Memory of a token in a KV pool: in all layers, and in those that look back `window_tokens` only."""

    total: int
    windowed: int = 0
    window_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTokens:
    """The tokens that a pool holds, and those that its layers with a window hold; None if they hold all of them."""

    tokens: int
    windowed: int | None = None

    def bytes_of(self, token: TokenBytes) -> int:
        """The memory of such a pool."""
        windowed = self.tokens if self.windowed is None else self.windowed
        return self.tokens * (token.total - token.windowed) + windowed * token.windowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The size of a KV pool for `requests` requests at once, as asked for.

    It takes `size_bytes`, or `part` of the memory that is free once the weights are there. With neither it takes
    what requests of usual length need; a verifier's at least what one needs that fills the context, and on a card
    what all of them would. Then it takes no more than a part of the free memory that leaves room for others.
    """

    requests: int = 16
    is_verifier: bool = False
    size_bytes: int | None = None
    part: float | None = None

    def tokens(
        self, token: TokenBytes, *, context_tokens: int, free_bytes: int | None, on_card: bool
    ) -> PoolTokens:
        """The tokens of the pool, given the memory of each; `free_bytes` is None where nobody knows.

        Raises `UsageError` if that is not enough for a single request of usual length.
        """
        usual_tokens = min(context_tokens, USUAL_TOKENS)
        wanted_tokens, memory_part = self.requests * usual_tokens, SHARED_MEMORY_PART
        if self.is_verifier and on_card:
            wanted_tokens, memory_part = self.requests * context_tokens, CARD_MEMORY_PART
        elif self.is_verifier:
            wanted_tokens = max(wanted_tokens, context_tokens)
        if self.size_bytes is not None:
            tokens = self._tokens_within(self.size_bytes, token, context_tokens)
        elif free_bytes is None:
            tokens = self.requests * usual_tokens
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
        """The most tokens that layers with a window need to hold; None where they hold all.

        A drafter feeds a prompt in one pass, which has to be there as a whole.
        """
        if not (self.is_verifier and token.windowed):
            return None
        return self.requests * (token.window_tokens + WINDOW_SPARE_TOKENS) + PASS_TOKENS

    def _tokens_within(self, size_bytes: int, token: TokenBytes, context_tokens: int) -> int:
        """The tokens of the largest pool of that size."""
        windowed = self._windowed_tokens(token)
        if windowed is None or size_bytes <= windowed * token.total:
            return size_bytes // token.total
        rest_bytes, full_bytes = size_bytes - windowed * token.total, token.total - token.windowed
        # Where all layers have a window no request takes more however long it is.
        return windowed + rest_bytes // full_bytes if full_bytes else max(windowed, self.requests * context_tokens)


def parse_pool_size(text: str, *, requests: int, is_verifier: bool) -> PoolSize:
    """A size such as 8GiB or 500MB, a part of the free memory such as 0.5, or auto. Raises `UsageError`."""
    auto = PoolSize(requests=requests, is_verifier=is_verifier)
    size_bytes, part = parse_memory(text, option="--kv-memory")
    return replace(auto, size_bytes=size_bytes, part=part)


def parse_memory(text: str, *, option: str) -> tuple[int | None, float | None]:
    """Bytes such as 8GiB or 500MB, or a part of what is free such as 0.5; neither for auto.

    Raises `UsageError`, which names the option.
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
    """Memory that the machine has left, or the container if that is less; None where the system does not say.

    `cgroup` is the control group of a container, as it sees itself (cgroup v2).
    """
    try:
        lines = meminfo.read_text("ascii").splitlines()
        free_bytes = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    # A container without a limit says "max", which is no number.
    with suppress(OSError, ValueError, KeyError):
        limit_bytes = int((cgroup / "memory.max").read_text("ascii"))
        used_bytes = int((cgroup / "memory.current").read_text("ascii"))
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text("ascii").splitlines())
        # What was only read from files is given back when others want it.
        used_bytes -= int(counts["inactive_file"])
        free_bytes = min(free_bytes, max(0, limit_bytes - used_bytes))
    return free_bytes
