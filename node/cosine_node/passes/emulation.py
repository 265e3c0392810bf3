"""Emulated devices and links.

The shapes come from measured CPU timings of bf16 Llama forwards at 1, 4, 8, 16 and 32 tokens over 256 tokens of
context: 312M parameters for verifiers (49.7, 47.5, 54.6, 67.6, 96.7 ms), 13.5M for drafters (5.12, 4.84, 5.33,
6.40, 8.45 ms), made monotonic. A profile scales them to its cost of one token.
"""

import re
from dataclasses import dataclass
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

# Tokens of a pass, and its time relative to one token.
VERIFIER_SHAPE: Final = ((1, 1.0), (4, 1.0), (8, 1.099), (16, 1.36), (32, 1.946))
DRAFTER_SHAPE: Final = ((1, 1.0), (4, 1.0), (8, 1.041), (16, 1.25), (32, 1.65))

DEFAULT_PROFILE: Final = "60/6@10"
"""A verifier with some billion parameters and drafters ten times as fast, 10 ms away."""

_MS: Final = r"(\d+(?:\.\d+)?)"
_PROFILE: Final = re.compile(rf"(?:{_MS}/{_MS})?(?:@{_MS})?")
"""[VERIFIER_MS/DRAFTER_MS][@RTT_MS]."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """An emulated device, or only a link.

    verifier_ms: Time of a one-token pass of a verifier or a stage; 0 for no emulated device.
    drafter_ms: Time of a one-token pass of a drafter; 0 for no emulated device.
    rtt_ms: Round trip between this node and each of its peers.
    """

    name: str
    verifier_ms: float
    drafter_ms: float
    rtt_ms: float

    @classmethod
    def parse(cls, name: str) -> "Emulation":
        """Read `VERIFIER_MS/DRAFTER_MS[@RTT_MS]` or `@RTT_MS`. Raises `UsageError`."""
        match = _PROFILE.fullmatch(name)
        if match is None or not any(match.groups()) or 0.0 in (float(part or 1) for part in match.groups()[:2]):
            raise UsageError(
                f"{name!r} is not an emulation profile; write VERIFIER_MS/DRAFTER_MS@RTT_MS, for example "
                f"{DEFAULT_PROFILE}, or @RTT_MS for a link alone."
            )
        verifier_ms, drafter_ms, rtt_ms = (float(part or 0) for part in match.groups())
        return cls(name, verifier_ms, drafter_ms, rtt_ms)

    @property
    def has_device(self) -> bool:
        """True if passes are emulated, not only the link."""
        return self.verifier_ms > 0

    @property
    def one_way_s(self) -> float:
        return self.rtt_ms / 2e3

    def curve(self, role: Role) -> CostCurve:
        is_verifier = role is not Role.DRAFTER
        shape = VERIFIER_SHAPE if is_verifier else DRAFTER_SHAPE
        scale_s = (self.verifier_ms if is_verifier else self.drafter_ms) / 1e3
        return CostCurve(tuple((tokens, scale_s * factor) for tokens, factor in shape))

    def describe(self) -> dict[str, object]:
        return {
            "profile": self.name,
            "verifier_pass_ms": {str(t): round(self.verifier_ms * f, 2) for t, f in VERIFIER_SHAPE},
            "drafter_pass_ms": {str(t): round(self.drafter_ms * f, 2) for t, f in DRAFTER_SHAPE},
            "client_to_verifier_rtt_ms": self.rtt_ms,
            "client_to_drafter_rtt_ms": self.rtt_ms,
        }
