"""Emulated devices: what a profile's name means, and that it says so."""

import pytest

from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role


def test_a_profile_names_two_pass_times_and_a_round_trip() -> None:
    emulation = Emulation.parse("60/6@10")
    assert (emulation.verifier_ms, emulation.drafter_ms, emulation.rtt_ms) == (60.0, 6.0, 10.0)
    assert emulation.one_way_s == 0.005
    assert emulation.name == "60/6@10"


@pytest.mark.parametrize(
    "name", ["", "60", "60/6@", "-60/6", "60/6@10ms", "a/b", "60/6@10@5", "1e3/6", "0/6", "60/0@5"]
)
def test_anything_else_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError, match=DEFAULT_PROFILE):
        Emulation.parse(name)


def test_curves_rise_with_tokens_from_the_cost_of_one() -> None:
    emulation = Emulation.parse("60/6@10")
    for role, one_s in ((Role.VERIFIER, 0.06), (Role.DRAFTER, 0.006)):
        costs = [emulation.curve(role).seconds(tokens) for tokens in range(1, 65)]
        assert costs[0] == pytest.approx(one_s)
        assert costs == sorted(costs)
        assert costs[31] > 1.5 * costs[0]


def test_every_emulated_latency_is_named() -> None:
    described = Emulation.parse("60/6@10").describe()
    assert described["profile"] == "60/6@10"
    assert described["client_to_verifier_rtt_ms"] == described["client_to_drafter_rtt_ms"] == 10.0
    passes = described["verifier_pass_ms"]
    assert isinstance(passes, dict)
    assert passes["1"] == 60.0
    assert passes["32"] == pytest.approx(1e3 * Emulation.parse("60/6").curve(Role.VERIFIER).seconds(32), abs=0.01)
