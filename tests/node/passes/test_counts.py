"""Counters of services in a simulated swarm."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
from cosine_node.passes.counts import DrafterCounts, Histogram, VerifierCounts
from cosine_protocol.errors import GenerationFailed
from tests.swarm.reference import VOCAB_TOKENS, prompt_of, target_engine

TOKENS = 24
PROMPT = prompt_of(random.Random("counts"))
SLOW = CostCurve(((1, 0.5),))


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_has_each_value_once_below_its_bound(values: list[float]) -> None:
    histogram = Histogram((1.0, 10.0))
    for value in values:
        histogram.add(value)
    low, middle = sum(v <= 1 for v in values), sum(1 < v <= 10 for v in values)
    assert histogram.counts == [low, middle, len(values) - low - middle]
    assert histogram.total == pytest.approx(sum(values))


def verifying(member: SimulatedMember) -> VerifierCounts:
    counts = member.service.counts
    assert isinstance(counts, VerifierCounts)
    return counts


def drafting(member: SimulatedMember) -> DrafterCounts:
    counts = member.service.counts
    assert isinstance(counts, DrafterCounts)
    return counts


class Broken(ScriptedEngine):
    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        raise RuntimeError("kernel")


def test_passes_that_fail_are_counted_and_their_requests_end_in_error() -> None:
    async def verified() -> VerifierCounts:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(Broken(vocab_tokens=VOCAB_TOKENS))
            client = await swarm.client()
            with pytest.raises(GenerationFailed):
                await client.generate(PROMPT, max_new_tokens=4)
            return verifying(verifier)

    async def drafted() -> DrafterCounts:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            drafter = await swarm.drafter(Broken(vocab_tokens=VOCAB_TOKENS))
            client = await swarm.client(coordination="client")
            await client.generate(PROMPT, max_new_tokens=TOKENS)
            return drafting(drafter)

    for counts in (run_virtual(verified()), run_virtual(drafted())):
        assert (counts.passes_failed, dict(counts.ended)) == (1, {"error": 1})
        assert sum(counts.pass_s.counts) == 0
