"""Which nodes enter a pass: with their parents, within the budget, as many as pay."""

import random

import pytest

from cosine_node.engine.curve import CostCurve
from cosine_node.verifier.pass_rows import (
    MIN_PATH_PROBABILITY,
    CandidateNode,
    candidate_nodes,
    free_nodes,
    select_nodes,
)
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.nodes import BASE, Node

FLAT = CostCurve(((1, 0.05), (64, 0.05)))
LINEAR = CostCurve(((1, 0.01), (64, 0.64)))
GENTLE = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
SEEDS = range(60)


def random_tree(rng: random.Random, *, nodes: int) -> LiveTree:
    """A live tree with many equal confidences, so that ties are common."""
    tree = LiveTree(rng.randbytes(16), rng.randrange(100))
    digests = [(tree.root.digest, tree.position)]
    for _ in range(nodes):
        base, position = rng.choice(digests)
        node = Node(BASE, rng.randrange(6), rng.choice([1.0, 1.0, 0.9, 0.5, 0.2, 0.01]))
        attached = tree.attach(base, position, (node,), (rng.randrange(1, 3),))
        digests.extend((grown.digest, grown.position + 1) for grown in attached)
    return tree


def random_candidates(rng: random.Random, *, owners: int) -> list[CandidateNode]:
    trees = [random_tree(rng, nodes=rng.randrange(20)) for _ in range(owners)]
    return [c for owner, tree in enumerate(trees) for c in candidate_nodes(owner, tree, max_depth=8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_never_goes_without_its_parent(seed: int) -> None:
    rng = random.Random(seed)
    candidates = random_candidates(rng, owners=3)
    chosen = select_nodes(candidates, plain_rows=3, curve=FLAT, budget_tokens=rng.randrange(3, 40))
    present = {(c.owner, c.node) for c in chosen}
    known = {(c.owner, c.node) for c in candidates}
    for candidate in chosen:
        parent = (candidate.owner, candidate.node.parent)
        assert parent in present or parent not in known


@pytest.mark.parametrize("seed", SEEDS)
def test_the_budget_is_never_exceeded(seed: int) -> None:
    rng = random.Random(seed)
    candidates = random_candidates(rng, owners=2)
    budget = rng.randrange(0, 12)
    for rows in (1, 2, 12):
        chosen = select_nodes(candidates, plain_rows=rows, curve=FLAT, budget_tokens=budget)
        assert len(chosen) <= max(0, budget - rows)


@pytest.mark.parametrize("curve", [FLAT, GENTLE, LINEAR])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_choice_is_the_best_prefix_of_the_ranking(seed: int, curve: CostCurve) -> None:
    rng = random.Random(seed)
    candidates = random_candidates(rng, owners=2)
    ranked = sorted(candidates, key=lambda c: (-c.path_probability, c.node.position))[: 24 - 2]

    def rate(count: int) -> float:
        return (2 + sum(c.path_probability for c in ranked[:count])) / curve.seconds(2 + count)

    chosen = select_nodes(candidates, plain_rows=2, curve=curve, budget_tokens=24)
    assert chosen == ranked[: len(chosen)]
    assert rate(len(chosen)) == pytest.approx(max(rate(count) for count in range(len(ranked) + 1)))


def test_no_node_pays_where_every_token_costs_a_whole_pass() -> None:
    tree = LiveTree(bytes(16))
    tree.attach(tree.root.digest, 0, (Node(BASE, 1, 0.98), Node(0, 2, 0.98)), (1, 1))
    candidates = candidate_nodes(0, tree, max_depth=8)
    assert len(candidates) == 2
    assert select_nodes(candidates, plain_rows=1, curve=LINEAR, budget_tokens=64) == []


def test_a_node_must_be_worth_more_where_it_delays_prompts() -> None:
    curve = CostCurve(((1, 0.06), (8, 0.06), (108, 0.26)))
    tree = LiveTree(bytes(16))
    tree.attach(tree.root.digest, 0, (Node(BASE, 1, 0.5),), (1,))
    candidates = candidate_nodes(0, tree, max_depth=8)
    assert select_nodes(candidates, plain_rows=20, curve=curve, budget_tokens=128) == candidates
    assert select_nodes(candidates, plain_rows=20, prompt_tokens=60, curve=curve, budget_tokens=128) == []


def test_a_free_node_is_always_taken() -> None:
    tree = LiveTree(bytes(16))
    tree.attach(tree.root.digest, 0, (Node(BASE, 1, 0.01),), (1,))
    candidates = candidate_nodes(0, tree, max_depth=8)
    assert select_nodes(candidates, plain_rows=1, curve=FLAT, budget_tokens=64) == candidates


def test_candidates_multiply_the_best_claims_down_a_path_and_end_where_hope_does() -> None:
    tree = LiveTree(bytes(16), 5)
    chain = (Node(BASE, 1, 0.5), Node(0, 2, 0.1), Node(1, 3, 0.01), Node(2, 4, 1.0))
    tree.attach(tree.root.digest, 5, chain, (1, 1, 1, 1))
    tree.attach(tree.root.digest, 5, (Node(BASE, 1, 0.8),), (2,))
    found = candidate_nodes(0, tree, max_depth=8)
    assert [c.path_probability for c in found] == pytest.approx([0.8, 0.08])
    assert MIN_PATH_PROBABILITY > 0.08 * 0.01


def test_candidates_end_at_the_depth_asked_for() -> None:
    tree = LiveTree(bytes(16), 5)
    tree.attach(tree.root.digest, 5, [Node(index - 1, index, 1.0) for index in range(6)], [1] * 6)
    assert [c.node.position for c in candidate_nodes(0, tree, max_depth=3)] == [5, 6, 7]
    assert candidate_nodes(0, tree, max_depth=0) == []


def test_free_nodes_are_those_a_flat_curve_takes_for_nothing() -> None:
    stepped = CostCurve(((1, 0.06), (4, 0.06), (8, 0.07)))
    assert [free_nodes(stepped, fed_tokens=fed, limit=10) for fed in (1, 3, 4, 5)] == [3, 1, 0, 0]
    assert free_nodes(CostCurve(((1, 0.06),)), fed_tokens=1, limit=10) == 10
