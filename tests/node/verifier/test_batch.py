"""The next pass: shares of users, selection of drafts, and preemption."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.passes.counts import VerifierCounts
from cosine_node.verifier.audited_stream import AuditedStream, Nobody
from cosine_node.verifier.batch import PassBatch
from cosine_node.verifier.costs import CandidateNode, PassCosts, candidate_nodes
from cosine_node.verifier.served_request import RequestStage
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.draft import BASE, Node
from tests.node.peers import FLAT, request_of
from tests.node.verifier.replaying import claim_of, unfed

LINEAR = CostCurve(((1, 0.01), (64, 0.64)))
GENTLE = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
NO_RESULT: Any = None
"""The results are not used."""


# Selection.


@given(
    st.integers(0, 2**32), st.sampled_from([FLAT, GENTLE, LINEAR]), st.integers(1, 40), st.sampled_from([1, 2, 12])
)
def test_the_choice_is_the_best_prefix_of_the_ranking_within_the_budget(
    seed: int, curve: CostCurve, budget_tokens: int, fed_tokens: int
) -> None:
    """Ties are common, and no node is chosen without its parent."""
    rng = random.Random(seed)
    candidates: list[CandidateNode] = []
    for owner in range(3):
        tree = LiveTree(rng.randbytes(16), rng.randrange(100))
        digests = [(tree.root.digest, tree.position)]
        for _ in range(rng.randrange(20)):
            base, position = rng.choice(digests)
            node = Node(BASE, rng.randrange(6), rng.choice([1.0, 1.0, 0.9, 0.5, 0.2, 0.01]))
            attached = tree.attach(base, position, (node,), (rng.randrange(1, 3),))
            digests.extend((grown.digest, grown.position + 1) for grown in attached)
        candidates += candidate_nodes(owner, tree, max_depth=8)
    ranked = sorted(candidates, key=lambda c: (-c.path_probability, c.node.position))
    ranked = ranked[: max(0, budget_tokens - fed_tokens)]

    def rate(count: int) -> float:
        return (fed_tokens + sum(c.path_probability for c in ranked[:count])) / curve.seconds(fed_tokens + count)

    chosen = PassCosts(curve, most_tokens=budget_tokens).that_pay(candidates, fed_tokens=fed_tokens)
    assert chosen == ranked[: len(chosen)]
    assert rate(len(chosen)) == pytest.approx(max(rate(count) for count in range(len(ranked) + 1)))
    present, known = ({(c.owner, c.node) for c in some} for some in (chosen, candidates))
    parents = {(c.owner, c.node.parent) for c in chosen}
    assert parents & known <= present


# Memory.


class Served(PassBatch):
    """Requests with prompts of these lengths at an engine of 64 tokens, in order of admission."""

    def __init__(self, *prompt_tokens: int) -> None:
        self.engine, self.counts = ScriptedEngine(pool_tokens=64), VerifierCounts()
        super().__init__(self.engine, PassCosts(FLAT), self.counts)
        self.admitted = []
        for number, tokens in enumerate(prompt_tokens):
            request = request_of("c", prompt=(number,) * tokens)
            sequence = self.engine.open(sampling=request.sampling, prompt_tokens=tokens)
            self.admitted.append(unfed(request, sequence=sequence, number=number))
            self.requests.add(self.admitted[-1])

    def feed(self, number: int) -> bool:
        """Reserve the pages of a whole prompt and feed it; False if it has to wait."""
        request = self.admitted[number]
        row = request.prefill_row(request.unfed_tokens)
        if not self.reserve(request, row):
            return False
        self.engine.forward([row])
        self.engine.keep(row.sequence, row.nodes)
        request.note_fed(len(row.tokens))
        return True


def test_nobody_begins_before_an_older_request_that_waits_for_room() -> None:
    served = Served(20, 60, 10)
    assert served.feed(0)
    assert not served.feed(1)
    assert served.counts.preempted == 0
    assert [served.may_begin(request) for request in served.admitted[1:]] == [False, False]
    served.requests.remove(served.admitted[1])
    assert served.may_begin(served.admitted[2])


def test_an_audit_whose_pages_a_request_takes_is_not_in_the_pass() -> None:
    """The request came later and needs a page for its next token; the audit has reserved the last ones."""
    served = Served(32)
    assert served.feed(0)
    [request] = served.admitted
    request.output, request.stage = [9], RequestStage.DECODE
    served.requests.remove(request)
    claim = claim_of(request_of("c", prompt=(9,) * 20), (1,) * 8)
    served.requests.add(AuditedStream.of(claim, Nobody("c"), engine=served.engine, first=0))
    served.requests.add(request)
    [row], _ = served.next_rows()
    assert row.request is request and served.counts.preempted == 1
    served.engine.forward([row.row])
