"""The reports of a chain's stages on a sequence, and the first contradiction between two chains. Pure.

Theory of operation
-------------------
For each pass a stage reports projections of its input and output, whose seed was drawn afterwards (`proof`). A
`Witness` records which pass computed each token. A sequence can attend to keys and values that passes of other
sequences computed, so it records by slot of the pool; and an error in one pass affects all sequences that use its
slots later, so a sequence is compared from its first token on, up to the first unknown one.

A head computes the same tokens again over a second chain and compares. The output of a stage at a position depends
on its inputs up to there, so places are compared in causal order: position by position, at each the boundaries
between layers from first to last. At the *first* wrong place all inputs were equal, and there are three cases:

- The two senders report different outputs: one of them lies.
- They agree, but in one chain the receiver reports another input: one of these neighbours lies, and it is
unknown which (`Contradiction.is_link`).
- All boundaries agree, but the last stages choose differently beyond rounding (`trust.audit_rule`): one of the
  stages after the last equal boundary lies.

Honest stages round differently, so there are two bounds: up to `clean` a boundary counts as equal, from `wrong` on
as different. A difference makes suspects of all stages since the last clean boundary; otherwise a liar could let
noise grow in the honest stage behind it. If no single position is wrong, the median may be: a small error
everywhere is not rounding. Older stages that report nothing widen the suspects in the same way.

The last stage returns only choices, which small faults seldom change. `disputes` decides what follows from a
contradiction, `checks` which chains are compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from cosine_engine.base import Choice, Row, RowResult
from cosine_engine.choice_gap import gap_of
from cosine_engine.tree import SequenceTree
from cosine_node.chains.search import StagePlace
from cosine_node.stages.proof import Projections, read_projections
from cosine_p2p.trust.audit_rule import WIDE, is_near_tie, most_by_chance, rounding_of
from cosine_protocol.request import Sampling
from cosine_protocol.stage import LayerRange, PartTrace

CHECK_TOKENS: Final = 2048
"""Only the beginning of a longer sequence is checked: the length of usual requests."""

Gaps = npt.NDArray[np.float64]
"""The relative distance of two vectors, by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRounding:
    """Bounds of the relative distance of two stages' vectors: equal up to `clean`, different from `wrong` on.

    The medians over a sequence have separate bounds.
    """

    clean: float
    wrong: float
    clean_median: float
    wrong_median: float


_IN_FLOAT32: Final = TraceRounding(clean=1.2e-5, wrong=1e-3, clean_median=3e-6, wrong_median=1e-4)
_IN_GROUPS: Final = TraceRounding(clean=0.4, wrong=0.9, clean_median=0.075, wrong_median=0.25)
TRACE_ROUNDING: Final[Mapping[str, TraceRounding]] = MappingProxyType(
    {
        "float32": _IN_FLOAT32,
        "float32/float16": _IN_FLOAT32,
        "float32/int4": _IN_GROUPS,
        "float32/int8": _IN_GROUPS,
        "bfloat16": TraceRounding(clean=0.17, wrong=0.6, clean_median=0.04, wrong_median=0.15),
        "float16": TraceRounding(clean=0.035, wrong=0.3, clean_median=0.0055, wrong_median=0.03),
    }
)
"""Measured with texts written token by token, four at once, with one thread, and read in pieces of 64 with two. The
widest gaps of the embedded target and of SmolLM2-135M (29 boundaries) were 1.0e-6 and 4.6e-6 in float32, 0.016 and
0.069 in bfloat16, 0.0018 and 0.013 in float16; the widest medians 4.6e-7 and 1.1e-6, 0.006 and 0.016, 0.0008 and
0.0021. With weights in groups they were 0.163 and 0.030 when the last bit of SmolLM2's embedding was changed at
random. Clean is up to 2.5 times the widest; wrong from 200, 8, 20 and 5 times on, of medians from 90, 9, 14, 8."""
MEDIAN_POSITIONS: Final = 16
"""The least number of positions for a median."""
LINK: Final = 1e-5
"""Bound between a sender's and its receiver's reports: equal bytes, projected in float 32."""


@dataclass(frozen=True, slots=True)
class StageTrace:
    """A stage's reports over a sequence, [positions, projections]; None where it reports nothing."""

    peer_id: str
    layers: LayerRange
    entered: Projections | None
    left: Projections | None


@dataclass(frozen=True, slots=True)
class ChainTrace:
    """The reports of a chain's stages over a sequence, and the last one's choice after each position, if known."""

    stages: tuple[StageTrace, ...]
    choices: tuple[Choice | None, ...]

    @property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(stage.peer_id for stage in self.stages)

    @property
    def positions(self) -> int:
        return len(self.choices)

    def over(self, boundary: int) -> Projections | None:
        """The activations at a boundary between layers, as the sender or else the receiver reports them."""
        sender, receiver = self.link(boundary)
        return receiver.entered if sender.left is None else sender.left

    def link(self, boundary: int) -> tuple[StageTrace, StageTrace]:
        """The neighbours at a boundary."""
        number = next(number for number, each in enumerate(self.stages) if each.layers.end == boundary)
        return self.stages[number], self.stages[number + 1]

    def between(self, first: int, end: int) -> tuple[str, ...]:
        """The possible causes of a difference at boundary `end` that did not exist at `first`."""
        suspects = [stage.peer_id for stage in self.stages if first <= stage.layers.first < end]
        if first and self.link(first)[1].entered is None:
            suspects.insert(0, self.link(first)[0].peer_id)
        if end < self.stages[-1].layers.end and self.link(end)[0].left is None:
            suspects.append(self.link(end)[1].peer_id)
        return tuple(suspects)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The boundaries between its stages that at least one neighbour reports on."""
        return tuple(each.layers.end for each in self.stages[:-1] if self.over(each.layers.end) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two sides of which one has lied, and the layers that they disagree about.

    The sides are stages of the two chains, or for a link sender and receiver of one chain. `place` is the causal
    order.
    """

    ones: tuple[str, ...]
    others: tuple[str, ...]
    layers: LayerRange
    place: tuple[int, int]
    is_link: bool = False

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self.ones) | frozenset(self.others)


def apart(one: Projections, other: Projections) -> Gaps:
    """The relative distance of vectors at each position; infinite where one is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.mean((one - other) ** 2, axis=1)
        length = np.mean((one**2 + other**2) / 2, axis=1)
        found = np.sqrt(difference / np.where(length > 0, length, 1.0))
    return np.where(np.isfinite(found), found, math.inf)


def contradiction(one: ChainTrace, other: ChainTrace, *, sampling: Sampling, numerics: str) -> Contradiction | None:
    """The first contradiction between or within two chains; None if all stages may be honest."""
    rounding = TRACE_ROUNDING[numerics]
    positions, layers = min(one.positions, other.positions), one.stages[-1].layers.layers
    gaps: dict[int, Gaps] = {}
    for boundary in sorted({*one.boundaries} & {*other.boundaries}):
        ours, theirs = one.over(boundary), other.over(boundary)
        assert ours is not None and theirs is not None, "a boundary of both"
        gaps[boundary] = apart(ours[:positions], theirs[:positions])

    def crossing(end: int, position: int) -> Contradiction:
        upto = {each: of_each[: position + 1] for each, of_each in gaps.items() if each < end}
        first = max((each for each, of_each in upto.items() if _is_clean(of_each, rounding)), default=0)
        return Contradiction(
            ones=one.between(first, end),
            others=other.between(first, end),
            layers=LayerRange(first=first, end=end, layers=layers),
            place=(position, end),
        )

    found = [each for chain in (one, other) for each in _broken_links(chain, positions)]
    for boundary, of_boundary in gaps.items():
        if (position := _first(of_boundary, rounding.wrong)) is not None:
            found.append(crossing(boundary, position))
        elif _median(of_boundary) > rounding.wrong_median:
            found.append(crossing(boundary, positions))
    if found:
        # A difference of senders precedes that of the link behind them.
        return min(found, key=lambda each: (each.place, each.is_link))
    if choices_differ(one.choices, other.choices, sampling=sampling, numerics=numerics):
        return crossing(layers, positions)
    return None


def _broken_links(chain: ChainTrace, positions: int) -> list[Contradiction]:
    """The neighbours of a chain whose reports on their transfer differ."""
    found = []
    for boundary in chain.boundaries:
        sender, receiver = chain.link(boundary)
        if sender.left is None or receiver.entered is None:
            continue
        position = _first(apart(sender.left, receiver.entered)[:positions], LINK)
        if position is not None:
            about = LayerRange(first=boundary - 1, end=boundary + 1, layers=receiver.layers.layers)
            ones, others = (sender.peer_id,), (receiver.peer_id,)
            place = (position, boundary)
            found.append(Contradiction(ones=ones, others=others, layers=about, place=place, is_link=True))
    return found


def choices_differ(
    ones: Sequence[Choice | None], others: Sequence[Choice | None], *, sampling: Sampling, numerics: str
) -> bool:
    """True if two last stages differ more often than rounding explains, as in audits; `others` have candidates."""
    rounding = rounding_of(numerics)
    wide = near = compared = 0
    for one, other in zip(ones, others, strict=False):
        if one is None or other is None:
            continue
        compared += 1
        if one.token != other.token:
            gap = gap_of(other, one.token)
            near += 1
            wide += not is_near_tie(gap, sampling=sampling, near_tie=WIDE * rounding.near_tie)
    has_filter = not sampling.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    filtered = rounding.filter_flip_rate * compared if has_filter else 0.0
    return wide > most_by_chance(filtered) or near > most_by_chance(filtered + rounding.flip_rate * compared)


def agrees(trace: ChainTrace, third: ChainTrace, upto: Contradiction, *, sampling: Sampling, numerics: str) -> bool:
    """True if a third chain does not contradict this one up to the place of a contradiction."""
    found = contradiction(trace, third, sampling=sampling, numerics=numerics)
    return found is None or found.place > upto.place


def _first(gaps: Gaps, bound: float) -> int | None:
    wrong = np.flatnonzero(gaps > bound)
    return int(wrong[0]) if len(wrong) else None


def _is_clean(gaps: Gaps, rounding: TraceRounding) -> bool:
    """True if a boundary is equal up to rounding."""
    return not len(gaps) or (gaps.max() <= rounding.clean and _median(gaps) <= rounding.clean_median)


def _median(gaps: Gaps) -> float:
    return float(np.median(gaps)) if len(gaps) >= MEDIAN_POSITIONS else 0.0


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
    """A sequence that has ended, up to the first token of an unknown pass."""

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
    """The trace of a sequence, up to the first token on which a reporting stage does not report."""
    known = list(takewhile(lambda each: each.fed.told, tokens))
    found: list[tuple[list[Projections] | None, ...]] = []
    most = len(known)
    for number, place in enumerate(places):
        sides: list[list[Projections] | None] = []
        for side, is_end in enumerate((place.layers.is_first, place.layers.is_last)):
            if is_end or not known or known[0].fed.told[number] is None:
                sides.append(None)
                continue
            of_side: list[Projections] = []
            for each in known[:most]:
                told = each.fed.told[number]
                if told is None or (of_pass := told[side]) is None:
                    break
                of_side.append(of_pass[each.index])
            most = len(of_side)
            sides.append(of_side)
        found.append(tuple(sides))
    stages = (
        StageTrace(
            place.peer_id, place.layers, *(None if side is None else np.array(side[:most]) for side in sides)
        )
        for place, sides in zip(places, found, strict=True)
    )
    return ChainTrace(tuple(stages), tuple(each.fed.choices[each.index] for each in known[:most]))
