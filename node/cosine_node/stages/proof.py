"""The record that a stage keeps of its passes and reports on request, so that its head can compare stages. Pure.

Theory of operation
-------------------
A report is a random projection of the activations that entered and left a stage: the sums of a vector's numbers
with signs from a seed (docs/protocol.md, section 6, "Probes"). The root mean square of the projections of a
difference estimates its length (Johnson and Lindenstrauss 1984). The seed is drawn after the activations were
computed, since a peer that knew it could forge them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_protocol.errors import CosineError, LocalProtocolError, MalformedMessage
from cosine_protocol.stage import KEPT_TOKENS, MAX_FEED_TOKENS, PROJECTION_BYTES, PROJECTIONS, FeedPart

Projections = npt.NDArray[np.float64]
"""[tokens, `PROJECTIONS`]."""
DOMAIN: Final = b"cosine/probe/1"
AT_ONCE_TOKENS: Final = 64
"""Bounds memory to 8 MiB at a width of 16,384 in float 64."""
VALUE_BYTES: Final = {
    **dict.fromkeys(("float32", "float32/float16", "float32/int4", "float32/int8"), 4),
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of a number of the activations, by the numerics that checks can compare."""


def project(activations: bytes | bytearray | memoryview, *, tokens: int, numerics: str, seed: bytes) -> bytes:
    """The projections of `tokens` vectors, as in `PartTrace`. Raises `LocalProtocolError`."""
    size = VALUE_BYTES.get(numerics)
    if size is None or not tokens or len(activations) % (size * tokens):
        raise LocalProtocolError(f"{len(activations)} bytes are not vectors of {tokens} tokens in {numerics}.")
    width = len(activations) // (size * tokens)
    signs = _signs(width, seed)
    found = np.empty((tokens, PROJECTIONS), dtype="<f4")
    # A sum beyond float 32 becomes infinite, which no honest stage reaches.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, tokens, AT_ONCE_TOKENS):
            stop = min(tokens, start + AT_ONCE_TOKENS)
            part = memoryview(activations)[start * width * size : stop * width * size]
            found[start:stop] = _values(part, numerics).reshape(stop - start, width) @ signs
    return found.tobytes()


def read_projections(told: bytes, *, tokens: int) -> Projections | None:
    """Decode the projections of `tokens` vectors; None if the length is another."""
    if len(told) != PROJECTIONS * PROJECTION_BYTES * tokens:
        return None
    return np.frombuffer(told, dtype="<f4").astype(np.float64).reshape(tokens, PROJECTIONS)


def _signs(width: int, seed: bytes) -> Projections:
    """1 or -1 for each number of a vector and each projection: [width, `PROJECTIONS`]."""
    drawn = np.frombuffer(shake_256(DOMAIN + seed).digest(PROJECTIONS // 8 * width), dtype=np.uint8)
    bits = np.unpackbits(drawn).reshape(width, PROJECTIONS)
    return np.where(bits, np.float64(1.0), np.float64(-1.0))


def _values(activations: Any, numerics: str) -> npt.NDArray[np.float64]:
    if numerics == "bfloat16":
        # The upper half of a float 32.
        upper = np.frombuffer(activations, dtype="<u2").astype(np.uint32) << 16
        return upper.view(np.float32).astype(np.float64)
    return np.frombuffer(activations, dtype="<f4" if VALUE_BYTES[numerics] == 4 else "<f2").astype(np.float64)


PROBES_A_TOKEN: Final = 4
"""A head probes once for a check, and a replay once for each seed of the other chain."""


class TooManyProbes(CosineError):
    """A head probes more tokens than a stage answers."""


@dataclass(frozen=True, slots=True)
class ComputedFeed:
    """The input and output of a stage in one pass, as bytes; None at the ends of the chain."""

    tokens: int
    entered: bytearray | None
    left: bytes | None


class ComputedFeeds:
    """The latest passes of one chain at one stage, kept for probes within `KEPT_TOKENS`, but at least one."""

    def __init__(self) -> None:
        self._tokens = 0
        self._feeds: dict[int, ComputedFeed] = {}
        self._unprobed_tokens = 0

    def add(self, number: int, feed: ComputedFeed) -> None:
        """Add a pass, and forget the oldest beyond the limit."""
        self._feeds[number] = feed
        self._tokens += feed.tokens
        self._unprobed_tokens += PROBES_A_TOKEN * feed.tokens
        while self._tokens > KEPT_TOKENS and len(self._feeds) > 1:
            self._tokens -= self._feeds.pop(next(iter(self._feeds))).tokens

    def take(self, parts: Sequence[FeedPart]) -> list[ComputedFeed | None]:
        """The feed of each part, None if it is not kept. Raises `MalformedMessage`, `TooManyProbes`."""
        tokens = sum(part.tokens for part in parts)
        if tokens > MAX_FEED_TOKENS:
            raise MalformedMessage(f"a probe of {tokens} tokens")
        if tokens > self._unprobed_tokens:
            raise TooManyProbes("more tokens are probed than were fed")
        self._unprobed_tokens -= tokens
        found = []
        for part in parts:
            feed = self._feeds.get(part.feed)
            found.append(feed if feed is not None and part.first + part.tokens <= feed.tokens else None)
        return found
