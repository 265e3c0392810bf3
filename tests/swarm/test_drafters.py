"""Tests of the choice of drafters, and of their share in a text."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.participants import identity_of
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.engine.base import Choice
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.tree import SequenceTree
from cosine_node.passes.emulation import DRAFTER_SHAPE, VERIFIER_SHAPE
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.trust.mandates import Coordination
from tests.swarm.reference import VOCAB_TOKENS, in_a_swarm, prompt_of, target_engine
from tests.thoroughness import quick_rows

HERE, THERE = "london", "singapore"
ON_A_MAP: dict[str, Any] = {
    "drafters": 6,
    "max_drafters": 3,
    "domains": ("code",),
    "fidelities": (0.7,),
    "requests": 3,
    "max_new_tokens": 24,
    "client_cities": (HERE,),
    "verifier_cities": (THERE,),
    "drafter_cities": (HERE, THERE),
    "settle_s": 600.0,
}


def helpers(scenario: Scenario) -> set[str]:
    """Return the cities of the drafters that drafted, and check every text."""
    report = run_scenario(scenario)
    assert report.violations() == []
    passes = {use.peer_id: use.passes for use in report.nodes}
    cities = scenario.drafter_cities
    return {
        cities[index % len(cities)]
        for index in range(scenario.drafters)
        if passes[identity_of("drafter", index).peer_id]
    }


@pytest.mark.thorough
@pytest.mark.parametrize("coordination", [Coordination.AUTO, Coordination.VERIFIER])
def test_a_verifier_far_away_gets_the_drafts_of_its_neighbours(coordination: Coordination) -> None:
    assert helpers(Scenario(coordination=coordination, **ON_A_MAP)) == {THERE}


UNTRIED = replace(STRATEGIES["cosine"], drafter_counts=())
"""The strategy without trials that pause drafters (`cosine_p2p.strategy.speed_trial`)."""
DRAFT_S = 0.006
"""A pass of the drafter over one token, as in the profile 60/6."""
TOKENS = 96
CERTAIN = 0.97


class RightDrafter(ScriptedEngine):
    """The target with high confidence."""

    def _choice(self, tree: SequenceTree, name: int, candidates: int) -> Choice:
        choice = super()._choice(tree, name, candidates)
        doubt = (1.0 - CERTAIN) / VOCAB_TOKENS
        shown = tuple((token, CERTAIN if not rank else doubt) for rank, (token, _) in enumerate(choice.candidates))
        return replace(choice, candidates=shown)


@pytest.mark.parametrize(
    ("rtt_s", "coordination", "ratio"),
    quick_rows(product((0.004, 0.1), (Coordination.VERIFIER, Coordination.CLIENT), (30.0, 10.0)), 3),
)
@in_a_swarm
async def test_no_draft_of_a_drafter_that_is_always_right_is_lost(
    swarm: SimulatedSwarm, rtt_s: float, coordination: Coordination, ratio: float
) -> None:
    swarm.network = MemoryNetwork(one_way_s=rtt_s / 2)
    target = CostCurve(tuple((size, ratio * DRAFT_S * cost) for size, cost in VERIFIER_SHAPE))
    # Without copying, whatever no drafter drafted is a token of a pass of its own.
    policy = Policy(uses_prompt_lookup=False)
    await swarm.verifier(target_engine(), curve=target, policy=policy, coordination=UNTRIED)
    drafter = CostCurve(tuple((size, DRAFT_S * cost) for size, cost in DRAFTER_SHAPE))
    await swarm.drafter(RightDrafter(vocab_tokens=VOCAB_TOKENS), curve=drafter)
    client = await swarm.client(coordination=coordination, strategies={UNTRIED.name: UNTRIED})
    rng = random.Random("draft ways")
    # Nobody is dialled any more for the second text.
    await client.generate(prompt_of(rng), max_new_tokens=TOKENS)
    done = await client.generate(prompt_of(rng), max_new_tokens=TOKENS)
    assert done.coordinator == coordination
    assert done.offered >= 0.95 * TOKENS
    assert done.accepted >= 0.95 * TOKENS * (1.0 - 1.0 / ratio)
