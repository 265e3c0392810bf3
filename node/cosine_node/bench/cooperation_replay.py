"""Rounds of tree drafting and verifying one request, replayed on traces: several drafters fused, or one alone.

In a round every drafter drafts its best-first tree from the committed prefix under its own calibrated confidence;
the most probable `budget` nodes are verified, the walk down the true stream is accepted, and one token more is
committed. Everything but the timing is production: calibration, fusion, router. Nothing is kept from one round to
the next, and there is no cost of time.
"""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cosine_node.engine.ngram import FollowerIndex
from cosine_node.simulation.trace_engine import ON_STREAM, Place, TraceDrafter
from cosine_node.simulation.traces import CANDIDATES, Trace, TraceSet, splice
from cosine_p2p.routing.base import DrafterFacts, Round
from cosine_p2p.routing.hedge import HedgeRouter
from cosine_p2p.speculation.calibration import Calibration
from cosine_p2p.speculation.fusion import FusedView, Fusion
from cosine_p2p.tree import LiveTree
from cosine_protocol.nodes import BASE, Node

LOOKUP_NLL: Final = 8.3
"""What it says of a prompt it cannot predict: a uniform guess among the vocabulary, nats a token."""
FIRST_CHOICE_POWER: Final = 0.5
TOKEN_S: Final = 0.002
RTT_S: Final = 0.03
ROOT: Final = bytes(16)
MIN_CONFIDENCE: Final = 1e-6
FIRST_SPLICED: Final = 1_000_000
MIN_REST_TOKENS: Final = 32

Said = Sequence[tuple[int, float]]


class Voice(Protocol):
    """What a drafter says below any prefix of a request; `at` is a place that it alone understands."""

    def prompt_nll(self, trace: Trace) -> float: ...

    def start(self, trace: Trace, position: int) -> Place: ...

    def after(self, at: Place, token: int) -> Place: ...

    def says(self, at: Place) -> Said:
        """Tokens with its own claims, the best first."""
        ...


class ModelVoice(TraceDrafter):
    """A drafter of the traces; off the stream it says what `TraceDrafter` says there."""

    def __init__(self, traces: TraceSet, model: str) -> None:
        super().__init__(traces, model)
        self._said: dict[tuple[int, int, int], Said] = {}

    def prompt_nll(self, trace: Trace) -> float:
        return self._script(trace).prompt_nll

    def start(self, trace: Trace, position: int) -> Place:
        return Place(trace, position, ON_STREAM)

    def after(self, at: Place, token: int) -> Place:
        return self._step(at, token, 0)

    def says(self, at: Place) -> Said:
        assert at.trace is not None
        key = (at.trace.number, at.position, at.path)
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = self._choice(at, CANDIDATES).candidates
        return said


class LookupVoice:
    """The drafter without weights; a place's path numbers what was drafted below the committed tokens."""

    def __init__(self) -> None:
        self._index = FollowerIndex()
        self._trace: Trace | None = None
        self._position = 0
        self._paths: list[tuple[int, ...]] = [()]

    def prompt_nll(self, trace: Trace) -> float:
        del trace
        return LOOKUP_NLL

    def start(self, trace: Trace, position: int) -> Place:
        if trace is not self._trace or position < self._position:
            self._index, self._trace, self._position = FollowerIndex(), trace, 0
        self._index.extend(trace.stream[self._position : position])
        self._position = position
        self._paths = [()]
        return Place(trace, position, 0)

    def after(self, at: Place, token: int) -> Place:
        self._paths.append((*self._paths[at.path], token))
        return Place(at.trace, at.position + 1, len(self._paths) - 1)

    def says(self, at: Place) -> Said:
        self._index.extend(self._paths[at.path])
        found = self._index.estimate().found[:CANDIDATES]
        self._index.cut(self._position)
        return found


@dataclass(slots=True)
class Drafter:
    """A voice with what its node has learnt about its claims, over all requests."""

    voice: Voice
    calibration: Calibration = field(default_factory=lambda: Calibration(first_power=FIRST_CHOICE_POWER))

    def draft(self, trace: Trace, position: int, *, nodes: int) -> "Drafted":
        """Its `nodes` most probable nodes, parents first."""
        drafted = Drafted()
        heap: list[tuple[float, int, Node, float, Place]] = []

        def open_below(parent: int, at: Place, reach: float) -> None:
            for rank, (token, claim) in enumerate(self.voice.says(at)):
                confidence = self.calibration(claim, is_first=rank == 0)
                worth = reach * max(confidence, MIN_CONFIDENCE)
                node = Node(parent, token, confidence)
                heapq.heappush(heap, (-worth, len(drafted.firsts) * CANDIDATES + rank, node, claim, at))
            drafted.firsts.append(parent)

        open_below(BASE, self.voice.start(trace, position), 1.0)
        while heap and len(drafted.nodes) < nodes:
            worth, order, node, claim, at = heapq.heappop(heap)
            drafted.nodes.append(node)
            drafted.claims.append((claim, order % CANDIDATES == 0))
            open_below(len(drafted.nodes) - 1, self.voice.after(at, node.token), -worth)
        return drafted

    def learn(self, drafted: "Drafted", tokens: Sequence[int]) -> int:
        """Calibrate on committed tokens; returns how many of them were drafted in a row."""
        above = BASE
        for depth, token in enumerate(tokens):
            hit = None
            for index, node in enumerate(drafted.nodes):
                if node.parent == above:
                    claim, is_first = drafted.claims[index]
                    self.calibration.observe(claim, is_first=is_first, hit=node.token == token)
                    hit = index if node.token == token else hit
            if hit is None:
                return depth
            above = hit
        return len(tokens)


@dataclass(slots=True)
class Drafted:
    """A tree in the order it grew: nodes, and of each the claim before calibration and whether it was the first."""

    nodes: list[Node] = field(default_factory=list)
    claims: list[tuple[float, bool]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tally:
    """Rounds that a request took and drafted tokens accepted in them."""

    rounds: int
    accepted: int

    @property
    def per_round(self) -> float:
        return self.accepted / max(1, self.rounds)


def alone(drafter: Drafter, trace: Trace, *, budget: int) -> Tally:
    """A request with the best `budget` nodes of one drafter in every round."""
    position = rounds = accepted = 0
    stream = trace.stream
    while position < len(stream):
        drafted = drafter.draft(trace, position, nodes=budget)
        hits = _walked(drafted.nodes, stream[position:])
        tokens = stream[position : position + hits + 1]
        drafter.learn(drafted, tokens)
        position += len(tokens)
        rounds, accepted = rounds + 1, accepted + hits
    return Tally(rounds, accepted)


def _walked(nodes: Sequence[Node], stream: Sequence[int]) -> int:
    children = {(node.parent, node.token): index for index, node in enumerate(nodes)}
    above, depth = BASE, 0
    while depth < len(stream) and (above, stream[depth]) in children:
        above, depth = children[above, stream[depth]], depth + 1
    return depth


def together(drafters: Mapping[int, Drafter], trace: Trace, *, budget: int) -> Tally:
    """A request with the best `budget` nodes of all drafters' fused tree in every round."""
    fusion, router = Fusion(), HedgeRouter()
    for author, drafter in drafters.items():
        nll = drafter.voice.prompt_nll(trace)
        router.join(author, DrafterFacts(prompt_nll=nll, token_s=TOKEN_S, rtt_s=RTT_S))
    position = rounds = accepted = 0
    stream = trace.stream
    while position < len(stream):
        tree = LiveTree(ROOT)
        said = {author: d.draft(trace, position, nodes=budget) for author, d in drafters.items()}
        for author, drafted in said.items():
            tree.attach(tree.root, 0, drafted.nodes, [author] * len(drafted.nodes))
        chosen = most_probable(tree, fusion.view(tree, router.weights()), budget)
        hits = _reached(tree, chosen, stream[position:])
        tokens = stream[position : position + hits + 1]
        router.learn(_heard(fusion.learn(tree, tokens)))
        for author, drafted in said.items():
            drafters[author].learn(drafted, tokens)
        position += len(tokens)
        rounds, accepted = rounds + 1, accepted + hits
    return Tally(rounds, accepted)


def most_probable(tree: LiveTree, view: FusedView, count: int) -> frozenset[bytes]:
    """The `count` most probable nodes; none without its parent."""
    heap: list[tuple[float, int, bytes]] = []
    chosen: list[bytes] = []
    opened = [tree.root]
    while len(chosen) < count:
        for digest in opened:
            for below in tree.children_of(digest).values():
                node = tree.get(below)
                if node is not None:
                    heapq.heappush(heap, (-view.path_probability(node), node.position, below))
        if not heap:
            break
        opened = [heapq.heappop(heap)[2]]
        chosen += opened
    return frozenset(chosen)


def _reached(tree: LiveTree, chosen: frozenset[bytes], stream: Sequence[int]) -> int:
    digest = tree.root
    for depth, token in enumerate(stream):
        child = tree.child(digest, token)
        if child is None or child.digest not in chosen:
            return depth
        digest = child.digest
    return len(stream)


def _heard(spoken: tuple[Mapping[int, float], ...]) -> Round:
    heard = {author for said in spoken for author in said}
    return Round(
        used=frozenset(heard),
        accepted={},
        drafted={author: sum(author in said for said in spoken) for author in heard},
        draft_s={},
        confidence={},
        agreement={},
        spoken=spoken,
    )


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
