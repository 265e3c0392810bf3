"""Random numbers for strategies, which must not draw any of their own: a pure function of the request."""

from typing import Final

from cosine_protocol.noise import GAMMA, MASK, mix64

UNIT: Final = 2.0**-53
"""The distance of the floats that 53 random bits can give in [0, 1)."""


class RequestChance:
    """Implements `published.router.Chance`: the splitmix64 stream that starts at the digest of a request."""

    def __init__(self, digest: bytes) -> None:
        self._state = int.from_bytes(digest[:8], "big")

    def random(self) -> float:
        self._state = (self._state + GAMMA) & MASK
        return (mix64(self._state) >> 11) * UNIT

    def randrange(self, stop: int, /) -> int:
        return int(self.random() * stop)
