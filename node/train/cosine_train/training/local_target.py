"""A target on this machine that writes many answers at once and returns its likeliest tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import exp
from typing import Final

import numpy as np

from cosine_engine.base import Engine, OutOfPages, Row, RowResult
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_protocol.verify import Likelihood, log_probability_of
from cosine_train.training.answers import Answer, TargetPrompt

LIKELY_TOKENS: Final = 24
"""Likely tokens stored per position. The remaining probability is that of all others."""


@dataclass(slots=True)
class _Writing:
    """An unfinished answer: its prompt, the likelihood after each token so far, and the row to feed next."""

    prompt: TargetPrompt
    row: Row
    tokens: list[int] = field(default_factory=list)
    told: list[Likelihood] = field(default_factory=list)


class LocalTarget:
    """An engine that writes up to `slots` answers at once, each until one of `eos` or `new_tokens`.

    Its tokens are those of a verifier with the same engine, greedy or drawn with the keyed noise of the seed.
    """

    def __init__(self, engine: Engine, *, eos: Iterable[int], slots: int, new_tokens: int) -> None:
        self._engine = engine
        self._eos = frozenset(eos)
        self._slots = slots
        self._new_tokens = new_tokens

    def likely_after(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Return the `count` likeliest next tokens after these, and their probabilities."""
        sequence = self._engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
        try:
            (result,) = self._fed([_last_of(sequence, tokens, top=count)])
        finally:
            self._engine.release(sequence)
        return [(each.token, exp(log_probability_of(each.surprisal))) for each in result.likelihoods[0].top]

    def has_ended(self, answer: Answer) -> bool:
        """Return True for an answer that ends with an end token."""
        return answer.tokens[-1] in self._eos

    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """Yield the answers as they end, in any order.

        Raises `UsageError` for NaN, and for a prompt that is longer than the KV cache.
        """
        waiting = iter(prompts)
        live: dict[int, _Writing] = {}
        while True:
            for prompt in islice(waiting, self._slots - len(live)):
                try:
                    begun = self._begin(prompt)
                except OutOfPages:
                    if not live:
                        raise UsageError(f"A prompt of {len(prompt.tokens)} tokens is too long.") from None
                    waiting = chain([prompt], waiting)
                    break
                live[begun.row.sequence] = begun
            if not live:
                return
            for result, writing in zip(
                self._fed([one.row for one in live.values()]), [*live.values()], strict=True
            ):
                sequence, token = writing.row.sequence, result.choices[-1].token
                writing.tokens.append(token)
                writing.told += result.likelihoods
                if token in self._eos or len(writing.tokens) >= self._new_tokens:
                    self._engine.release(sequence)
                    del live[sequence]
                    yield _answer(writing.prompt, tuple(writing.tokens), writing.told)
                else:
                    self._engine.keep(sequence, writing.row.nodes)
                    writing.row = _last_of(sequence, (token,))

    def _begin(self, prompt: TargetPrompt) -> _Writing:
        """Open a sequence with room for the whole answer. Raises `OutOfPages`."""
        sequence = self._engine.open(sampling=prompt.sampling, prompt_tokens=len(prompt.tokens))
        try:
            self._engine.reserve(sequence, len(prompt.tokens) + self._new_tokens)
        except OutOfPages:
            self._engine.release(sequence)
            raise
        return _Writing(prompt, _last_of(sequence, prompt.tokens))

    def _fed(self, rows: Sequence[Row]) -> list[RowResult]:
        results = self._engine.forward(rows)
        if any(result.error is not None for result in results):
            raise UsageError("The target gives NaN or infinite logits; choose another --dtype.")
        return results


def _last_of(sequence: int, tokens: Sequence[int], *, top: int = LIKELY_TOKENS) -> Row:
    """Return a row of consecutive tokens with outputs for the last one."""
    return replace(Row.chain(sequence, tokens, scored_from=len(tokens) - 1), followers=(None,), top=top)


def _answer(prompt: TargetPrompt, tokens: tuple[int, ...], told: Sequence[Likelihood]) -> Answer:
    likely = [[(each.token, log_probability_of(each.surprisal)) for each in one.top] for one in told]
    ids, logs = np.moveaxis(np.array(likely), 2, 0)
    return prompt.answer(tokens, ids.astype(np.int32), logs.astype(np.float16))
