"""Decoding of requests on an engine as by a verifier, without a network."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cosine_node.engine.base import Choice, Engine, Row
from cosine_protocol.request import Sampling


@dataclass(slots=True)
class Decoded:
    """Output tokens, and the margin of each over the second best."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def note(self, choices: Sequence[Choice]) -> None:
        """Add choices in order."""
        self.tokens += [choice.token for choice in choices]
        self.margins += [choice.margin for choice in choices]


def decoded(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[int],
    *,
    at_once: int | None = None,
    samplings: Sequence[Sampling] = (),
) -> list[Decoded]:
    """Decode all requests, `at_once` of them together; the next request starts in the pass after one ends.

    They are greedy unless they have a sampling. A prompt is fed whole; keep and prune are called as by a verifier.
    Raises the errors of the engine.
    """
    done = [Decoded() for _ in prompts]
    waiting = deque(zip(prompts, tokens, samplings or [Sampling()] * len(prompts), done, strict=True))
    live: dict[int, tuple[int, Decoded]] = {}
    unfed: dict[int, Sequence[int]] = {}
    try:
        while waiting or live:
            while waiting and len(live) < (at_once or len(prompts)):
                prompt, count, sampling, text = waiting.popleft()
                sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
                live[sequence], unfed[sequence] = (count, text), prompt
            rows = [Row.chain(one, unfed[one], scored_from=len(unfed[one]) - 1) for one in live]
            for row, choices in _forward(engine, rows):
                engine.keep(row.sequence, row.nodes)
                engine.prune(row.sequence, row.nodes)
                count, text = live[row.sequence]
                text.note(choices)
                unfed[row.sequence] = text.tokens[-1:]
                if len(text.tokens) >= count:
                    engine.release(row.sequence)
                    del live[row.sequence]
    finally:
        for sequence in live:
            engine.release(sequence)
    return done


def _forward(engine: Engine, rows: Sequence[Row]) -> Iterator[tuple[Row, Sequence[Choice]]]:
    """Return the choices of every row of a pass. Raises its error."""
    for row, result in zip(rows, engine.forward(rows), strict=True):
        if result.error is not None:
            raise result.error
        yield row, result.choices
