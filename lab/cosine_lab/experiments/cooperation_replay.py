"""Rounds of tree drafting and verifying one request, replayed on traces: several drafters fused, or one alone.

In a round every drafter drafts its best-first tree from the committed prefix under its own calibrated confidence;
the most probable `budget` nodes are verified, the longest path of them along the recorded stream is accepted, and
one token more is committed. Everything but the timing is production: calibration, fusion, router. Nothing is kept
from one round to the next, and there is no cost of time.
"""

import heapq
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cosine_lab.experiments.routing_replay import RTT_S, TOKEN_S
from cosine_lab.simulation.trace_engine import ON_STREAM, TraceDrafter, TraceState
from cosine_lab.simulation.traces import CANDIDATES, VOCAB_TOKENS, Trace, TraceSet, splice
from cosine_lab.simulation.workload import LOOKUP
from cosine_node.drafter.draft_tree import MIN_PROBABILITY
from cosine_node.drafter.service import FIRST_CHOICE_POWER
from cosine_node.engine.ngram import FollowerIndex
from cosine_p2p.strategy.fusion import Calibration, FusedView, Fusion
from cosine_p2p.strategy.router import DrafterFacts, HedgeRouter, Round
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.nodes import BASE, Node

LOOKUP_NLL: Final = math.log(VOCAB_TOKENS)
"""Prompts are not recorded, so prompt lookup predicts them no better than a uniform guess, in nats a token."""
ROOT: Final = bytes(16)
"""Stands for the digest of every committed prefix: each round has a tree of its own."""
FIRST_SPLICED: Final = 1_000_000
"""Numbers of traces that are put together begin here, far above those of recorded ones."""
MIN_REST_TOKENS: Final = 32
"""A choice: a generation shorter than this is no second part of a request that changes domain."""


class CandidateSource(Protocol):
    """The candidates of a drafter below any prefix of a request; only it understands a `TraceState`."""

    def prompt_nll(self, trace: Trace) -> float: ...

    def start(self, trace: Trace, position: int) -> TraceState: ...

    def after(self, at: TraceState, token: int) -> TraceState: ...

    def candidates(self, at: TraceState) -> Sequence[tuple[int, float]]:
        """Tokens with their draft probabilities, the best first."""
        ...


class RecordedDrafter(TraceDrafter):
    """A drafter of the traces; off the stream it gives what `TraceDrafter` gives there."""

    def __init__(self, traces: TraceSet, model: str) -> None:
        super().__init__(traces, model)
        self._known: dict[tuple[int, int, int], Sequence[tuple[int, float]]] = {}

    def prompt_nll(self, trace: Trace) -> float:
        return self.script(trace).prompt_nll

    def start(self, trace: Trace, position: int) -> TraceState:
        return TraceState(trace, position, ON_STREAM)

    def after(self, at: TraceState, token: int) -> TraceState:
        return self.state_after(at, token, 0)

    def candidates(self, at: TraceState) -> Sequence[tuple[int, float]]:
        assert at.trace is not None
        key = (at.trace.number, at.position, at.path)
        if key not in self._known:
            self._known[key] = self._choice(at, CANDIDATES).candidates
        return self._known[key]


class LookupSource:
    """The drafter without weights; a state's path numbers the tokens drafted below the committed ones."""

    def __init__(self) -> None:
        self._index = FollowerIndex()
        self._trace: Trace | None = None
        self._position = 0
        self._paths: list[tuple[int, ...]] = [()]

    def prompt_nll(self, trace: Trace) -> float:
        del trace
        return LOOKUP_NLL

    def start(self, trace: Trace, position: int) -> TraceState:
        if trace is not self._trace or position < self._position:
            self._index, self._trace, self._position = FollowerIndex(), trace, 0
        self._index.extend(trace.stream[self._position : position])
        self._position = position
        self._paths = [()]
        return TraceState(trace, position, 0)

    def after(self, at: TraceState, token: int) -> TraceState:
        self._paths.append((*self._paths[at.path], token))
        return TraceState(at.trace, at.position + 1, len(self._paths) - 1)

    def candidates(self, at: TraceState) -> Sequence[tuple[int, float]]:
        self._index.extend(self._paths[at.path])
        found = self._index.estimate().found[:CANDIDATES]
        self._index.cut(self._position)
        return found


@dataclass(slots=True)
class BestFirstTree:
    """A tree in the order it grew: nodes, and of each the draft probability and whether it was a first choice."""

    nodes: list[Node] = field(default_factory=list)
    claims: list[tuple[float, bool]] = field(default_factory=list)

    def accepted(self, stream: Sequence[int]) -> int:
        """The number of tokens from the beginning of `stream` on that lie on one path of the tree."""
        children = {(node.parent, node.token): index for index, node in enumerate(self.nodes)}
        above, depth = BASE, 0
        while depth < len(stream) and (above, stream[depth]) in children:
            above, depth = children[above, stream[depth]], depth + 1
        return depth


@dataclass(slots=True)
class ReplayDrafter:
    """A source of candidates with the calibration that its node has learnt over all requests."""

    source: CandidateSource
    calibration: Calibration = field(default_factory=lambda: Calibration(first_power=FIRST_CHOICE_POWER))

    def draft(self, trace: Trace, position: int, *, nodes: int) -> BestFirstTree:
        """Its `nodes` most probable nodes, parents first."""
        tree = BestFirstTree()
        heap: list[tuple[float, int, int, int, float, float, TraceState]] = []
        parent, at, probability = BASE, self.source.start(trace, position), 1.0
        for opened in range(nodes):
            for rank, (token, claim) in enumerate(self.source.candidates(at)):
                confidence = self.calibration(claim, is_first=rank == 0)
                worth = probability * max(confidence, MIN_PROBABILITY)
                order = opened * CANDIDATES + rank
                heapq.heappush(heap, (-worth, order, parent, token, confidence, claim, at))
            if not heap:
                break
            negated, order, above, token, confidence, claim, place = heapq.heappop(heap)
            tree.nodes.append(Node(above, token, confidence))
            tree.claims.append((claim, order % CANDIDATES == 0))
            parent, at, probability = opened, self.source.after(place, token), -negated
        return tree

    def learn(self, tree: BestFirstTree, tokens: Sequence[int]) -> None:
        """Calibrate on committed tokens, as far as they were drafted in a row."""
        above = BASE
        for token in tokens:
            hit = None
            for index, node in enumerate(tree.nodes):
                if node.parent == above:
                    claim, is_first = tree.claims[index]
                    self.calibration.observe(claim, is_first=is_first, hit=node.token == token)
                    hit = index if node.token == token else hit
            if hit is None:
                return
            above = hit


def drafters_of(names: Iterable[str], traces: Sequence[Trace]) -> dict[str, ReplayDrafter]:
    """A drafter for each expertise, without anything learnt so far."""
    known = TraceSet(traces)
    return {
        name: ReplayDrafter(LookupSource() if name == LOOKUP else RecordedDrafter(known, f"draft-{name}"))
        for name in names
    }


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Rounds that requests took, and the drafted tokens accepted in them."""

    rounds: int
    accepted: int

    @property
    def per_round(self) -> float:
        return self.accepted / max(1, self.rounds)


def replay_alone(drafter: ReplayDrafter, trace: Trace, *, budget: int) -> RoundCounts:
    """A request with the best `budget` nodes of one drafter in every round."""
    position = rounds = accepted = 0
    while position < len(trace.stream):
        tree = drafter.draft(trace, position, nodes=budget)
        hits = tree.accepted(trace.stream[position:])
        tokens = trace.stream[position : position + hits + 1]
        drafter.learn(tree, tokens)
        position += len(tokens)
        rounds, accepted = rounds + 1, accepted + hits
    return RoundCounts(rounds, accepted)


def replay_fused(drafters: Mapping[int, ReplayDrafter], trace: Trace, *, budget: int) -> RoundCounts:
    """A request with the best `budget` nodes of all drafters' fused tree in every round."""
    fusion, router = Fusion(), HedgeRouter()
    for author, drafter in drafters.items():
        nll = drafter.source.prompt_nll(trace)
        router.join(author, DrafterFacts(prompt_nll=nll, token_s=TOKEN_S, rtt_s=RTT_S))
    position = rounds = accepted = 0
    while position < len(trace.stream):
        tree = LiveTree(ROOT)
        drafted = {author: d.draft(trace, position, nodes=budget) for author, d in drafters.items()}
        for author, own in drafted.items():
            tree.attach(tree.root.digest, 0, own.nodes, [author] * len(own.nodes))
        verified = most_probable(tree, fusion.view(tree, router.weights()), budget)
        path = tree.follow(trace.stream[position:])
        hits = next((depth for depth, node in enumerate(path) if node not in verified), len(path))
        tokens = trace.stream[position : position + hits + 1]
        _learn(router, fusion, tree, tokens)
        for author, own in drafted.items():
            drafters[author].learn(own, tokens)
        position += len(tokens)
        rounds, accepted = rounds + 1, accepted + hits
    return RoundCounts(rounds, accepted)


def _learn(router: HedgeRouter, fusion: Fusion, tree: LiveTree, tokens: Sequence[int]) -> None:
    """Teach fusion and router the committed tokens; the router learns from nothing but these probabilities."""
    likelihoods = fusion.learn(tree, tokens)
    authors = frozenset(author for by_author in likelihoods for author in by_author)
    router.learn(Round(authors=authors, likelihoods=likelihoods))


def most_probable(tree: LiveTree, view: FusedView, count: int) -> frozenset[TreeNode]:
    """The `count` most probable nodes; none without its parent."""
    heap: list[tuple[float, int, bytes, TreeNode]] = []
    chosen: list[TreeNode] = []
    opened = tree.root
    while len(chosen) < count:
        for node in opened.children.values():
            heapq.heappush(heap, (-view.path_probability(node), node.position, node.digest, node))
        if not heap:
            break
        opened = heapq.heappop(heap)[-1]
        chosen.append(opened)
    return frozenset(chosen)


def changing(traces: Sequence[Trace], *, at: int, rest_tokens: int, seed: int) -> tuple[Trace, ...]:
    """Requests that go on in another domain after `at` tokens, for at most `rest_tokens` more."""
    chance = random.Random(seed)
    made: list[Trace] = []
    for first in traces:
        others = [
            t for t in traces if t.domain != first.domain and len(t.stream) >= min(rest_tokens, MIN_REST_TOKENS)
        ]
        if len(first.stream) - first.is_finished >= at and others:
            second = chance.choice(others).shortened(rest_tokens)
            made.append(splice(first, second, at=at, number=FIRST_SPLICED + len(made)))
    return tuple(made)
