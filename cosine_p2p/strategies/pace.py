"""Live inputs of the latency model: how long passes take, and how often drafts hold."""

from collections.abc import Mapping, Sequence
from typing import Final

from cosine_p2p.routing.base import DrafterFacts
from cosine_p2p.speculation.latency_model import Latencies
from cosine_p2p.speculation.moving_average import moving_average
from cosine_p2p.strategies.base import VerifierOpened
from cosine_protocol.messages import PassStats

FIRST_ACCEPTANCE: Final = 0.7
ACCEPTANCE_WEIGHT: Final = 0.05
PASS_WEIGHT: Final = 0.2


class Pace:
    """Running means over one request. Committed tokens about which nobody had spoken in time do not count."""

    def __init__(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE
        self._plain_pass_s = 0.0
        self._pass_s = 0.0
        self._verifier_rtt_s = 0.0

    def open(self, opened: VerifierOpened) -> None:
        """A verifier took the request."""
        self._plain_pass_s = self._pass_s = opened.pass_s
        self._verifier_rtt_s = opened.rtt_s

    def note(self, stats: PassStats, spoken: Sequence[Mapping[int, float]]) -> None:
        """A pass ended; `spoken` is what drafters had said of each token it committed."""
        self._pass_s = moving_average(self._pass_s, stats.pass_us / 1e6, weight=PASS_WEIGHT)
        for said in spoken:
            if said:
                hit = float(any(likelihood > 0.0 for likelihood in said.values()))
                self.acceptance = moving_average(self.acceptance, hit, weight=ACCEPTANCE_WEIGHT)

    def forget_acceptance(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE

    def latencies(self, drafter: DrafterFacts) -> Latencies:
        """What the model needs to know about one drafter."""
        return Latencies(
            plain_pass_s=self._plain_pass_s,
            pass_s=self._pass_s,
            token_s=drafter.token_s,
            verifier_rtt_s=self._verifier_rtt_s,
            drafter_rtt_s=drafter.rtt_s,
        )
