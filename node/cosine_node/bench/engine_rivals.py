"""This engine decoding as the verifier does, and rivals that take turns on the clock."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Final, Generic, TypeVar

from cosine_node.engine.base import Choice, Engine, Row
from cosine_protocol.errors import CosineError
from cosine_protocol.request import Sampling

NEAR_TIE: Final = 1e-3
"""Scores so close that another order of float32 sums may swap them."""
SIXTEEN_BIT_NEAR_TIE: Final = 0.25
"""The same in 16 bits: a few roundings of a bfloat16 score between 4 and 16."""
_Done = TypeVar("_Done")


class Agreement(Enum):
    """The comparison of two texts; after a near tie decided otherwise the rest says nothing."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    DIFFERENT = "different"


@dataclass(slots=True)
class Decoded:
    """Output tokens, and by how much each beat the second best."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def note(self, choices: Sequence[Choice]) -> None:
        """Add choices in order."""
        self.tokens += [choice.token for choice in choices]
        self.margins += [choice.margin for choice in choices]

    def compared(self, others: Sequence[int], *, near_tie: float) -> Agreement:
        """Compare with the same tokens by somebody else."""
        for own, other, margin in zip(self.tokens, others, self.margins, strict=False):
            if own != other:
                return Agreement.NEAR_TIE if margin < near_tie else Agreement.DIFFERENT
        return Agreement.EQUAL if len(self.tokens) == len(others) else Agreement.DIFFERENT


@dataclass(slots=True)
class _DecodingRequest:
    sequence: int
    unfed: tuple[int, ...]
    decoded: Decoded

    def row(self) -> Row:
        return Row.chain(self.sequence, self.unfed, scored_from=len(self.unfed) - 1)

    def commit(self, engine: Engine, row: Row, choice: Choice) -> None:
        engine.keep(self.sequence, row.nodes)
        engine.prune(self.sequence, row.nodes)
        self.decoded.note([choice])
        self.unfed = (choice.token,)


def decoded(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: Sequence[int], *, at_once: int | None = None
) -> list[Decoded]:
    """All requests, greedy, `at_once` of them together: whoever is done is followed by the next in the same pass.

    A newcomer's prompt is fed whole; keep and prune are called as a verifier does. Raises what the engine raises.
    """
    done = [Decoded() for _ in prompts]
    waiting = deque(zip(prompts, tokens, done, strict=True))
    live: list[tuple[_DecodingRequest, int]] = []
    try:
        while waiting or live:
            while waiting and len(live) < (at_once or len(prompts)):
                prompt, count, text = waiting.popleft()
                sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
                live.append((_DecodingRequest(sequence, tuple(prompt), text), count))
            rows = [request.row() for request, _ in live]
            for (request, _), row, result in zip(live, rows, engine.forward(rows), strict=True):
                _check(result.error)
                request.commit(engine, row, result.choices[0])
            live = _stayed(engine, live)
    finally:
        for request, _ in live:
            engine.release(request.sequence)
    return done


def _stayed(engine: Engine, requests: Sequence[tuple[_DecodingRequest, int]]) -> list[tuple[_DecodingRequest, int]]:
    stayed = []
    for request, tokens in requests:
        if len(request.decoded.tokens) < tokens:
            stayed.append((request, tokens))
        else:
            engine.release(request.sequence)
    return stayed


class PackedBatch:
    """Sequences of unequal length in an engine, fed the same again and again."""

    def __init__(self, engine: Engine, contexts: Sequence[Sequence[int]]) -> None:
        self._engine = engine
        self._sequences = [engine.open(sampling=Sampling(), prompt_tokens=len(context)) for context in contexts]
        rows = [
            Row.chain(number, context, scored_from=len(context))
            for number, context in zip(self._sequences, contexts, strict=True)
        ]
        for row, result in zip(rows, engine.forward(rows), strict=True):
            _check(result.error)
            engine.keep(row.sequence, row.nodes)

    def verify(self, fed: Sequence[Sequence[int]]) -> list[Decoded]:
        """The tokens that follow each fed token, one list a sequence; afterwards the engine is as before."""
        rows = [Row.chain(number, tokens) for number, tokens in zip(self._sequences, fed, strict=True)]
        found = []
        for row, result in zip(rows, self._engine.forward(rows), strict=True):
            _check(result.error)
            self._engine.prune(row.sequence, row.nodes)
            found.append(Decoded())
            found[-1].note(result.choices)
        return found

    def close(self) -> None:
        """Give the pages back."""
        for number in self._sequences:
            self._engine.release(number)


def _check(error: CosineError | None) -> None:
    if error is not None:
        raise error


@dataclass(frozen=True, slots=True)
class Timed(Generic[_Done]):
    """The result of somebody's last run, and the seconds of every time that counts."""

    done: _Done
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def alternately(
    runs: Mapping[str, Callable[[], _Done]], *, repeats: int, clock: Callable[[], float]
) -> dict[str, Timed[_Done]]:
    """Time everybody in turn, `repeats` times after one that does not count; every other round runs backwards.

    So what else the machine does, and who comes after whom, falls on all alike. `clock` returns seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    last = {name: run() for name, run in runs.items()}
    for repeat in range(repeats):
        for name in list(runs)[:: -1 if repeat % 2 else 1]:
            began_s = clock()
            last[name] = runs[name]()
            seconds[name].append(clock() - began_s)
    return {name: Timed(last[name], tuple(seconds[name])) for name in runs}
