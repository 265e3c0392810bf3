"""Records of the pass that computed each token of a head's sequences, and of the stages' reports. Pure.

A sequence may attend to keys and values that passes of other sequences computed, so records are by slot of the
pool. An error in one pass affects all sequences that use its slots later, so a sequence is compared from its first
token on, as far as everything is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from cosine_engine.base import Choice, Row, RowResult
from cosine_engine.tree import SequenceTree
from cosine_node.chains.comparison import ChainTrace, StageTrace
from cosine_node.chains.search import StagePlace
from cosine_node.stages.projections import Projections, read_projections
from cosine_protocol.request import Sampling
from cosine_protocol.stage import PartTrace

Told = tuple[Projections | None, Projections | None]
"""The reported input and output of a stage in a pass, by token; None where it reports nothing."""


@dataclass(slots=True, eq=False)
class WitnessedPass:
    """A pass, the choices after its tokens, and the stages' reports `told`, by the `seed` of the probe."""

    number: int
    rows: tuple[Row, ...]
    tokens: int
    end: int = 0
    """The number of tokens fed so far, including its own."""
    choices: list[Choice | None] = field(default_factory=list)
    seed: bytes | None = None
    told: tuple[Told | None, ...] = ()


@dataclass(frozen=True, slots=True)
class WitnessedToken:
    """A token of a sequence, and its index in the pass that computed it."""

    token: int
    fed: WitnessedPass
    index: int


@dataclass(frozen=True, slots=True)
class WitnessedSequence:
    """A sequence that has ended, as far as the passes of its tokens are known."""

    tokens: tuple[WitnessedToken, ...]
    sampling: Sampling
    prompt_tokens: int


class Witness:
    """Records the passes of one chain. `on_answer` takes answered passes, `on_end` ended sequences."""

    def __init__(
        self,
        *,
        first_feed: int = 0,
        on_answer: Callable[[WitnessedPass], object] = lambda fed: None,
        on_end: Callable[[WitnessedSequence], object] = lambda sequence: None,
    ) -> None:
        self._next = first_feed
        self.fed_tokens = 0
        self._on_answer = on_answer
        self._on_end = on_end
        self._slots: dict[int, tuple[WitnessedPass, int]] = {}
        self._unanswered: list[WitnessedPass] = []

    def note_fed(self, rows: Sequence[Row], trees: Sequence[SequenceTree]) -> None:
        """Record a pass that begins."""
        slots = [tree.nodes[name].slot for tree, row in zip(trees, rows, strict=True) for name in row.nodes]
        self.fed_tokens += len(slots)
        fed = WitnessedPass(self._next, tuple(rows), len(slots), self.fed_tokens)
        self._next += 1
        self._unanswered.append(fed)
        for index, slot in enumerate(slots):
            self._slots[slot] = fed, index

    def note_answered(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        """Record the results of the oldest pass over these rows."""
        fed = next((each for each in self._unanswered if each.rows == tuple(rows)), None)
        if fed is None:
            return
        self._unanswered.remove(fed)
        for row, result in zip(rows, results, strict=True):
            fed.choices += [None] * (len(row.tokens) - len(result.choices))
            fed.choices += result.choices
        fed.rows = ()
        self._on_answer(fed)

    def note_ended(self, tree: SequenceTree) -> None:
        """Report a sequence that is about to be released."""
        found: list[WitnessedToken] = []
        for token, slot in zip(tree.tokens, tree.slots, strict=True):
            fed, index = self._slots.get(slot, (None, 0))
            if fed is None or not fed.choices:
                break
            found.append(WitnessedToken(token, fed, index))
        if found:
            self._on_end(WitnessedSequence(tuple(found), tree.sampling, tree.prompt_tokens))


def told_of(trace: PartTrace, *, tokens: int) -> Told:
    """Decode a stage's report on a part with `tokens` tokens."""
    return read_projections(trace.entered, tokens=tokens), read_projections(trace.left, tokens=tokens)


def trace_of(tokens: Sequence[WitnessedToken], places: Sequence[StagePlace]) -> ChainTrace:
    """The trace of a sequence, as far as every stage that reports anything reports on every token."""
    known = list(takewhile(lambda each: each.fed.told, tokens))
    stages = []
    most = len(known)
    for number, place in enumerate(places):
        sides: list[list[Projections] | None] = []
        for side, is_end in enumerate((place.layers.is_first, place.layers.is_last)):
            if is_end or not known or known[0].fed.told[number] is None:
                sides.append(None)
                continue
            found: list[Projections] = []
            for each in known[:most]:
                told = each.fed.told[number]
                if told is None or (of_side := told[side]) is None:
                    break
                found.append(of_side[each.index])
            most = len(found)
            sides.append(found)
        stages.append((place, sides))
    return ChainTrace(
        tuple(
            StageTrace(
                place.peer_id, place.layers, *(None if side is None else np.array(side[:most]) for side in sides)
            )
            for place, sides in stages
        ),
        tuple(each.fed.choices[each.index] for each in known[:most]),
    )
