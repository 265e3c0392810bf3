"""Tests of the share of drafters in a text."""

import random
from dataclasses import replace
from itertools import product

import pytest

from cosine_engine.base import Choice
from cosine_engine.curve import CostCurve
from cosine_engine.tree import SequenceTree
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.passes.emulation import DRAFTER_SHAPE, VERIFIER_SHAPE
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.trust.mandates import Coordination
from tests.swarm.reference import VOCAB_TOKENS, in_a_swarm, prompt_of, target_engine
from tests.thoroughness import quick_rows

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
    # Without prompt lookup each token that no drafter drafted takes a pass.
    policy = Policy(uses_prompt_lookup=False)
    await swarm.verifier(target_engine(), curve=target, policy=policy, coordination=UNTRIED)
    drafter = CostCurve(tuple((size, DRAFT_S * cost) for size, cost in DRAFTER_SHAPE))
    await swarm.drafter(RightDrafter(vocab_tokens=VOCAB_TOKENS), curve=drafter)
    client = await swarm.client(coordination=coordination, strategies={UNTRIED.name: UNTRIED})
    rng = random.Random("draft ways")
    # The second text starts without dials.
    await client.generate(prompt_of(rng), max_new_tokens=TOKENS)
    done = await client.generate(prompt_of(rng), max_new_tokens=TOKENS)
    assert done.swarm.coordinator == coordination
    assert done.swarm.offered >= 0.95 * TOKENS
    assert done.swarm.accepted >= 0.95 * TOKENS * (1.0 - 1.0 / ratio)
