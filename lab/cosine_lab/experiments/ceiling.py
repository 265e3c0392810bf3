"""The most that any order of feeding could reach over a ring of stages, with the candidates that drafters recorded.

What is known within a traversal from now was fed before now: the next token, and those that follow it down the tree
under way. Of as many nodes as passes have room for meanwhile the most probable ones hold most of what is to come,
whoever chooses them. So a text takes no fewer traversals than there are such trees from one end of it to the other.
Here drafts take no time and have no way, and how much to believe each drafter, how often candidates of like
probability come true, and how many nodes a pass takes is known from the texts themselves, in hindsight. Whoever
decides beforehand, and waits for drafts, is slower.
"""

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from cosine_lab.emulation.traces import CANDIDATES, Trace
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.ngram import FollowerIndex
from cosine_p2p.strategy.fusion import Calibration

NODES: Final = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32)
"""Nodes of a pass that are tried: from one to far more than pay."""
MIXING_STEPS: Final = 100
"""Steps of expectation and maximisation, after which weights no longer change in the second place."""
MISSED: Final = 1e-3
"""The probability of a token that is none of the candidates: weights stay finite."""

Offers = list[tuple[int, float]]
"""Candidates for one position, with their probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a ring: what a pass costs each, how many there are, and the time of the way round them."""

    curve: CostCurve
    count: int
    way_s: float

    def traversal_s(self, nodes: int) -> float:
        """The time of a pass over so many nodes, all the way round."""
        return self.way_s + self.count * self.curve.seconds(nodes)

    def under_way(self, nodes: int) -> int:
        """The nodes under way where a pass of so many begins whenever a stage is free."""
        return nodes * math.ceil(self.traversal_s(nodes) / self.curve.seconds(nodes))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The least time of some texts, from the first token of each to the last, with `nodes` a pass.

    In `luckiest_s` the drafter to believe, or all of them, and the nodes of a pass are chosen for each text by how
    that came out.
    """

    nodes: int
    seconds: float
    luckiest_s: float


def ceiling_of(traces: Sequence[Trace], stages: Stages, *, tokens: int) -> Ceiling:
    """The ceiling over the first so many tokens of each text."""
    totals = dict.fromkeys(NODES, 0.0)
    luckiest_s = 0.0
    for trace in traces:
        stream = trace.stream[:tokens]
        *alone, mixed = _views(trace, len(stream))
        by_nodes = {nodes: _seconds(mixed, stream, stages, nodes) for nodes in NODES}
        totals = {nodes: total + by_nodes[nodes] for nodes, total in totals.items()}
        others = (_seconds(view, stream, stages, nodes) for view in alone for nodes in NODES)
        luckiest_s += min([*by_nodes.values(), *others])
    nodes = min(totals, key=totals.__getitem__)
    return Ceiling(nodes, totals[nodes], luckiest_s)


def _seconds(view: Sequence[Offers], stream: Sequence[int], stages: Stages, nodes: int) -> float:
    most = stages.under_way(nodes)
    # Whoever has come farther has no less under way.
    known = list(accumulate((p + 1 + _depth(view, stream, p, most) for p in range(len(stream))), max))
    position, traversals = 1, 0
    while position < len(stream):
        position, traversals = known[position], traversals + 1
    return traversals * stages.traversal_s(nodes)


def _depth(view: Sequence[Offers], stream: Sequence[int], first: int, most: int) -> int:
    """How many tokens of a text, from one on, the most probable tree of so many nodes holds.

    Below a wrong token it goes on as it does anywhere in the text.
    """
    elsewhere = random.Random(first)
    deepest = 0
    heap: list[tuple[float, int, int, bool]] = []
    pushed = 0

    def push(probability: float, position: int, *, is_right: bool) -> None:
        nonlocal pushed
        if is_right and position == len(stream):
            return
        for token, part in view[position] if is_right else view[elsewhere.randrange(len(view))]:
            pushed += 1
            heapq.heappush(
                heap, (-probability * part, pushed, position + 1, is_right and token == stream[position])
            )

    push(1.0, first, is_right=True)
    for _ in range(most):
        if not heap:
            break
        negated, _, position, is_right = heapq.heappop(heap)
        if is_right:
            deepest = position - first
        push(-negated, position, is_right=is_right)
    return deepest


def _views(trace: Trace, tokens: int) -> Iterator[list[Offers]]:
    """What each drafter offers for each token, calibrated by the text itself, and all of them mixed."""
    stream = trace.stream[:tokens]
    rows = [
        [
            list(zip(tokens_of, probabilities, strict=True))
            for tokens_of, probabilities in zip(
                own.candidate_tokens[:tokens].tolist(), own.candidate_probabilities[:tokens].tolist(), strict=True
            )
        ]
        for own in trace.drafters.values()
    ]
    rows.append(list(_copies(trace, tokens)))
    calibrated = [_calibrated(own, stream) for own in rows]
    yield from calibrated
    yield _mixed(calibrated, stream)


def _copies(trace: Trace, tokens: int) -> Iterator[Offers]:
    """What copying from the prompt and the text offers."""
    index = FollowerIndex()
    index.extend(trace.prompt())
    for token in trace.stream[:tokens]:
        yield list(index.estimate().found[:CANDIDATES])
        index.extend([token])


def _calibrated(rows: Sequence[Offers], stream: Sequence[int]) -> list[Offers]:
    calibration = Calibration()
    for offers, right in zip(rows, stream, strict=True):
        for rank, (token, probability) in enumerate(offers):
            calibration.observe(probability, is_first=not rank, hit=token == right)
    return [
        [(token, calibration(probability, is_first=not rank)) for rank, (token, probability) in enumerate(offers)]
        for offers in rows
    ]


def _mixed(views: Sequence[Sequence[Offers]], stream: Sequence[int]) -> list[Offers]:
    """The mixture under which the text is likeliest; who offers nothing for a token does not count there."""
    given = np.array(
        [
            [dict(offers).get(right, MISSED) if offers else 0.0 for offers in at]
            for at, right in zip(zip(*views, strict=True), stream, strict=True)
        ]
    )
    weights = np.full(len(views), 1.0 / len(views))
    for _ in range(MIXING_STEPS):
        parts = given * weights
        weights = (parts / parts.sum(axis=1, keepdims=True)).mean(axis=0)
    mixed = []
    for at in zip(*views, strict=True):
        awake = sum(weight for offers, weight in zip(at, weights, strict=True) if offers)
        shares: dict[int, float] = {}
        for offers, weight in zip(at, weights, strict=True):
            for token, probability in offers:
                shares[token] = shares.get(token, 0.0) + float(weight / awake) * probability
        mixed.append(sorted(shares.items(), key=lambda share: -share[1]))
    return mixed
