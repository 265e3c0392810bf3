"""The drafter's tree: its blocks attach, and its rows obey the engine."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from cosine_engine.base import Choice, Row
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.draft_tree import (
    URGENT_DEPTH,
    USUAL_RARITY,
    Branch,
    DraftRules,
    DraftTree,
)
from cosine_node.passes.counts import DrafterCounts
from cosine_p2p.strategy.fusion import Calibration
from cosine_p2p.strategy.tree import Block, LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import MAX_BLOCK_NODES
from cosine_protocol.request import Sampling

D_0 = bytes(range(16))
VOCAB = 12


def tree_of(
    prompt: tuple[int, ...] = (1, 2, 3),
    committed: tuple[int, ...] = (),
    *,
    held_passes: int = 0,
    **options: Any,
) -> DraftTree:
    rules = DraftRules(held_passes=held_passes)
    return DraftTree(D_0, prompt, committed, Calibration(), rules=rules, **options)


def branch(base: bytes = D_0, *, depth: int = 8, width: int = 4, window: int = 64, rarity: int = 100) -> Branch:
    return Branch(base, depth, width, window, rarity)


def said(*candidates: tuple[int, float]) -> Choice:
    return Choice(candidates[0][0], 1.0, candidates)


def planned(tree: DraftTree) -> Row:
    row = tree.plan(0)
    assert row is not None
    return row


def grown_by(tree: DraftTree, *choices: Choice) -> Block:
    """Run a pass whose choices are given; it must yield something to send."""
    grown = tree.absorb(planned(tree), choices)
    assert grown is not None
    return grown


def tokens_of(grown: Block) -> list[int]:
    return [node.token for node in grown.nodes]


@dataclass(slots=True)
class Follower:
    """A drafter's tree on a scripted engine, and a live tree with the same commits and all blocks."""

    rng: random.Random
    engine: ScriptedEngine
    tree: DraftTree
    live: LiveTree
    sequence: int
    counts: DrafterCounts
    output: list[int] = field(default_factory=list)
    blocks: int = 0

    @classmethod
    def of(cls, seed: int, held_passes: int) -> "Follower":
        rng = random.Random(seed)
        engine = ScriptedEngine(vocab_tokens=VOCAB, fidelity=0.6, drafter_seed=seed, context_tokens=512)
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6)))
        committed = [rng.randrange(VOCAB) for _ in range(rng.randrange(3))]
        sampling = Sampling(temperature=rng.choice([0, 0.9]))
        sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
        live = LiveTree(roll_digest(D_0, committed), len(committed))
        counts = DrafterCounts()
        tree = tree_of(prompt, tuple(committed), held_passes=held_passes, counts=counts)
        return cls(rng, engine, tree, live, sequence, counts, committed)

    def take(self, grown: Block | None) -> None:
        if grown is None:
            return
        self.blocks += 1
        assert grown.base in self.live
        touched = self.live.attach(grown.base, grown.position, grown.nodes, [1] * len(grown.nodes))
        assert [node.token for node in touched[: len(grown.nodes)]] == tokens_of(grown)
        assert 0 < len(grown.nodes) <= MAX_BLOCK_NODES

    def assign(self) -> None:
        rng, live = self.rng, self.live
        known = [live.root.digest, *(node.digest for node in live.walk())]
        base = rng.choice(known)
        if rng.random() < 0.2:
            base = rng.randbytes(16)
        made = branch(base, depth=rng.randrange(1, 7), width=rng.randrange(1, 5), window=rng.randrange(1, 20))
        self.take(self.tree.assign(made))

    def advance(self) -> None:
        """Commit tokens, drafted or not, sometimes repeated, overlapping, or after a gap."""
        rng, live = self.rng, self.live
        for _ in range(rng.randrange(1, 4)):
            drafted = sorted(live.root.children)
            token = rng.choice(drafted) if drafted and rng.random() < 0.7 else rng.randrange(VOCAB)
            self.output.append(token)
            live.advance([token])
        start = self.tree.position - rng.randrange(min(3, self.tree.position + 1))
        before = self.tree.position
        assert self.tree.advance(len(self.output) + 1, (0,)) is None
        assert self.tree.position == before
        self.take(self.tree.advance(start, self.output[start:]))
        assert self.tree.digest == self.live.root.digest

    def step(self) -> None:
        """Run a pass on the engine, which checks every name. A commit may arrive meanwhile."""
        self.engine.prune(self.sequence, self.tree.take_dropped())
        self.engine.keep(self.sequence, self.tree.take_kept())
        row = self.tree.plan(self.sequence)
        if row is None:
            return
        assert len(row.tokens) <= 512
        choices = self.engine.forward([row])[0].choices
        if self.rng.random() < 0.3:
            self.advance()
        self.take(self.tree.absorb(row, choices))


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(10, 120))]


@pytest.mark.parametrize("held_passes", [0, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_blocks_attach_and_the_engine_agrees(seed: int, held_passes: int) -> None:
    follower = Follower.of(seed, held_passes)
    actions = (follower.assign, follower.advance, follower.step, follower.step, follower.step)
    for _ in range(80):
        follower.rng.choice(actions)()
    assert follower.blocks > 3
    assert follower.tree.position == len(follower.output)
    assert follower.tree.digest == roll_digest(D_0, follower.output)
    counts = follower.counts
    assert 0 <= counts.taken_tokens <= counts.offered_positions <= len(follower.output)
    assert 5 < counts.first_choices <= len(follower.output)
    assert 0 <= counts.right_first_choices <= counts.first_choices


@pytest.mark.parametrize("bound", [{"depth": 2}, {"window": 3}])
def test_depth_and_window_bound_what_is_drafted_and_a_commit_or_rejection_makes_room(bound: dict[str, Any]) -> None:
    tree = tree_of()
    tree.assign(branch(width=1, **bound))
    for token in (5, 6, 7):
        grown_by(tree, said((token, 0.9)))
    assert (tree.unresolved, tree.plan(0)) == (3, None)
    tree.advance(0, (5,))
    assert (tree.unresolved, planned(tree).tokens, tree.take_dropped()) == (2, (7,), ())
    tree.advance(1, (11,))
    assert (tree.unresolved, planned(tree).tokens, len(tree.take_dropped())) == (0, (11,), 2)


def test_a_path_that_is_more_likely_than_not_is_never_held() -> None:
    sure, unsure = tree_of(held_passes=10), tree_of(held_passes=10)
    for tree in (sure, unsure):
        tree.assign(branch(width=1))
    for depth, token in enumerate(range(4, 10), 1):
        assert sure.absorb(planned(sure), [said((token, 0.97))])
        assert bool(unsure.absorb(planned(unsure), [said((token, 0.7))])) == (depth <= URGENT_DEPTH)


def test_an_unlikely_candidate_waits_and_comes_back_when_its_path_is_certain() -> None:
    tree = tree_of()
    tree.assign(branch(width=2))
    grown_by(tree, said((5, 0.2)))
    unlikely = 0.02
    grown = grown_by(tree, said((6, 0.9), (7, unlikely)))
    assert tokens_of(grown) == [6]
    assert math.sqrt(0.2) * unlikely < 1 / USUAL_RARITY <= unlikely
    late = tree.advance(0, (5,))
    assert late is not None
    assert (late.base, late.position, tokens_of(late)) == (roll_digest(D_0, [5]), 1, [7])


def test_a_block_of_very_many_nodes_still_fits_a_message() -> None:
    tree = tree_of()
    tree.assign(branch(width=256, window=1024))
    grown_by(tree, said(*((token, 0.9) for token in range(4))))
    for _ in range(4):
        row = planned(tree)
        grown = tree.absorb(row, [said(*((token, 0.9) for token in range(4)))] * len(row.tokens))
        assert grown is not None
        assert len(grown.nodes) <= MAX_BLOCK_NODES
        assert all(node.parent < index for index, node in enumerate(grown.nodes))
