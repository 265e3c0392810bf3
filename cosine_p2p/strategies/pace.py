"""Live inputs of the latency model: how long passes take, and the acceptance rate."""

from collections.abc import Mapping, Sequence
from typing import Final

from cosine_p2p.routing.base import DrafterFacts
from cosine_p2p.speculation.latency_model import Latencies
from cosine_p2p.speculation.moving_average import moving_average
from cosine_p2p.strategies.base import VerifierOpened
from cosine_protocol.messages import PassStats

FIRST_ACCEPTANCE: Final = 0.7
"""A choice: high enough that drafting is tried on most links until something was measured."""
ACCEPTANCE_WEIGHT: Final = 0.05
"""A choice: about the last 20 tokens count."""
PASS_WEIGHT: Final = 0.2
"""A choice: about the last 5 passes count, since the load of a verifier changes fast."""


class Pace:
    """Moving averages over one request. Committed tokens where nobody had drafted in time do not count."""

    def __init__(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE
        self._plain_pass_s = 0.0
        self._pass_s = 0.0
        self._verifier_rtt_s = 0.0

    def open(self, opened: VerifierOpened) -> None:
        """A verifier took the request."""
        self._plain_pass_s = self._pass_s = opened.pass_s
        self._verifier_rtt_s = opened.rtt_s

    def note(self, stats: PassStats, likelihoods: Sequence[Mapping[int, float]]) -> None:
        """A pass ended; `likelihoods` holds by author, for each token it committed, the probability drafted."""
        self._pass_s = moving_average(self._pass_s, stats.pass_us / 1e6, weight=PASS_WEIGHT)
        for by_author in likelihoods:
            if by_author:
                hit = float(any(likelihood > 0.0 for likelihood in by_author.values()))
                self.acceptance = moving_average(self.acceptance, hit, weight=ACCEPTANCE_WEIGHT)

    def forget_acceptance(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE

    def latencies(self, drafter: DrafterFacts) -> Latencies:
        """The inputs of the model for one drafter."""
        return Latencies(
            plain_pass_s=self._plain_pass_s,
            pass_s=self._pass_s,
            token_s=drafter.token_s,
            verifier_rtt_s=self._verifier_rtt_s,
            drafter_rtt_s=drafter.rtt_s,
        )
