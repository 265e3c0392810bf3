"""Stepped verifiers, and verifiers without parts of the product's."""

from functools import partial

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.verifiers import Policy, PolicyVerifier, SteppedVerifier
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import BASE, Node, NodeBlock
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import Commit, Pacing, Tree
from tests.node.peers import Bench, Caller, expected_output, request_of
from tests.node.verifier.test_service import collected, opening, play, tree_of


def test_a_stepped_request_gets_one_pass_for_each_tree_on_what_is_committed() -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        request = request_of(caller.peer_id, max_new_tokens=12)
        stream, d_0 = expected_output(request, bench.engine), request_digest(request)
        caller.post(opening(request, pacing=Pacing.PLAIN))
        assert (await caller.until(Commit)).tokens == stream[:1]
        caller.post(tree_of(d_0, 0, (1,)))
        assert not [heard for heard in await caller.hear_for(1.0) if isinstance(heard, Commit)]
        done = 1
        while done < 12:
            caller.post(tree_of(roll_digest(d_0, stream[:done]), done, stream[done : done + 2]))
            answer = await caller.until(Commit)
            assert answer.tokens == stream[done : done + min(3, 12 - done)]
            done += len(answer.tokens)
        await caller.until(FinalMessage)

    play(scene, make=SteppedVerifier)


@pytest.mark.parametrize(("budget_tokens", "nodes"), [(None, 20), (10, 9)])
def test_a_verifier_that_drops_no_costly_nodes_feeds_as_many_as_fit(budget_tokens: int | None, nodes: int) -> None:
    async def scene(bench: Bench, caller: Caller) -> None:
        request = request_of(caller.peer_id)
        before = roll_digest(request_digest(request), expected_output(request, bench.engine)[:4])
        unlikely = NodeBlock.of([Node(BASE, token, 0.001) for token in range(20)])
        caller.post(opening(request), Tree(1, before, 4, unlikely, bytes([1] * 20)))
        await collected(caller)
        assert max(heard.stats.nodes for heard in caller.heard if isinstance(heard, Commit)) == nodes

    policy = Policy(uses_prompt_lookup=False, drops_costly_nodes=False)
    play(scene, ScriptedEngine(), make=partial(PolicyVerifier, policy=policy), budget_tokens=budget_tokens)
