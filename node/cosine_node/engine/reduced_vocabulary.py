"""A drafter with a reduced vocabulary, in its target's tokens."""

import math
from collections.abc import Sequence
from dataclasses import replace

from cosine_node.engine.base import Choice, Engine, Row, RowResult
from cosine_node.engine.draft_vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling


class ReducedVocabularyEngine:
    """Implements `cosine_node.engine.base.Engine` in target tokens around an engine of a drafter's own ids.

    The inner engine must draw the noise of the target's ids and choose no reserved id: it was made with the same
    `vocabulary`. Raises `UsageError` if the vocabulary has ids that the target, of `vocab_tokens`, does not have.
    """

    def __init__(self, inner: Engine, vocabulary: DraftVocabulary, *, vocab_tokens: int) -> None:
        if vocabulary.target_ids[-1] >= vocab_tokens:
            raise UsageError(
                f"The drafter knows a token {vocabulary.target_ids[-1]}, but its target has {vocab_tokens}: "
                "it was made for another target."
            )
        self._inner = inner
        self._vocabulary = vocabulary
        self._vocab_tokens = vocab_tokens
        unknown = vocab_tokens - len(vocabulary.target_ids)
        self._nats_an_unknown = math.log(unknown) if unknown else 0.0

    @property
    def vocab_tokens(self) -> int:
        return self._vocab_tokens

    @property
    def context_tokens(self) -> int:
        return self._inner.context_tokens

    @property
    def numerics(self) -> str:
        return self._inner.numerics

    @property
    def free_tokens(self) -> int:
        return self._inner.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._inner.cached_tokens

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        return self._inner.open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        return self._inner.reuse_prefix(sequence, self._vocabulary.own_tokens(tokens))

    def reserve(self, sequence: int, tokens: int) -> None:
        self._inner.reserve(sequence, tokens)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        own = [replace(row, tokens=self._vocabulary.own_tokens(row.tokens)) for row in rows]
        return [self._result(row, result) for row, result in zip(own, self._inner.forward(own), strict=True)]

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._inner.keep(sequence, path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._inner.prune(sequence, nodes)

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        self._inner.release(sequence)

    def _result(self, row: Row, result: RowResult) -> RowResult:
        nll = result.nll
        if nll is not None:
            # The reserved id is as likely as all that it stands for; each of these alone is less so.
            scored = row.tokens[1:]
            nll += scored.count(self._vocabulary.reserved_id) * self._nats_an_unknown / len(scored)
        return replace(result, choices=tuple(map(self._choice, result.choices)), nll=nll)

    def _choice(self, choice: Choice) -> Choice:
        ids = self._vocabulary.target_ids
        candidates = tuple((ids[token], probability) for token, probability in choice.candidates)
        return Choice(ids[choice.token], choice.margin, candidates)
