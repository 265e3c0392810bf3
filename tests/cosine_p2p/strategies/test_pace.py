"""Running means that the latency model works with."""

from cosine_p2p.routing.base import DrafterFacts
from cosine_p2p.strategies.base import VerifierOpened
from cosine_p2p.strategies.pace import FIRST_ACCEPTANCE, Pace
from cosine_protocol.messages import PassStats

FACTS = DrafterFacts(prompt_nll=1.0, token_s=0.006, rtt_s=0.02)


def passed(ms: float) -> PassStats:
    return PassStats(4, 0, round(1e3 * ms), 0)


def test_it_starts_from_what_the_verifier_announced() -> None:
    pace = Pace()
    pace.open(VerifierOpened(0.06, 0.03))
    known = pace.latencies(FACTS)
    assert (known.plain_pass_s, known.pass_s, known.verifier_rtt_s) == (0.06, 0.06, 0.03)
    assert (known.token_s, known.drafter_rtt_s) == (0.006, 0.02)


def test_it_follows_the_passes() -> None:
    pace = Pace()
    pace.open(VerifierOpened(0.06, 0.03))
    for _ in range(40):
        pace.note(passed(120), [])
    known = pace.latencies(FACTS)
    assert abs(known.pass_s - 0.12) < 0.001
    assert known.plain_pass_s == 0.06


def test_only_tokens_somebody_spoke_about_count() -> None:
    pace = Pace()
    pace.note(passed(60), [{}, {}])
    assert pace.acceptance == FIRST_ACCEPTANCE
    pace.note(passed(60), [{1: 0.0, 2: 0.4}])
    assert pace.acceptance > FIRST_ACCEPTANCE
    for _ in range(100):
        pace.note(passed(60), [{1: 0.0}])
    assert pace.acceptance < 0.05
    pace.forget_acceptance()
    assert pace.acceptance == FIRST_ACCEPTANCE
