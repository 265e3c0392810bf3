"""A drafter with a reduced vocabulary, in its target's tokens.

A small drafter spends most of its weights on a large target's vocabulary, of which its domain uses a part. Its own
ids number the target's tokens that it knows.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from cosine_engine.base import Choice, Engine, EngineAround, Row, RowResult
from cosine_p2p.storage.bounded_file import read_json
from cosine_protocol.errors import LocalProtocolError, UsageError
from cosine_protocol.request import Sampling, TokenBias

FILE_NAME: Final = "draft_vocabulary.json"
"""The file in a drafter's folder that lists the target's token ids; the first is the drafter's id 0."""
RESERVED_NOISE: Final = 0.5772156649015329
"""Euler's constant, the mean of the noise: many tokens with one joint probability score like a single one."""


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The target's ids of a drafter's own ids 0, 1, ...; all further ids of the drafter are `reserved_id`.

    The reserved id replaces every other token in the drafter's input, and its probability is that of all of them.
    Ids must rise, so that ties break equally in both vocabularies. Raises `UsageError`. Vocabularies compare by
    identity, for caches.
    """

    target_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.target_ids or any(type(token) is not int or token < 0 for token in self.target_ids):
            raise UsageError("A draft vocabulary must be a list of the target's token ids.")
        if any(low >= high for low, high in zip(self.target_ids, self.target_ids[1:], strict=False)):
            raise UsageError("The ids of a draft vocabulary must rise, each greater than the one before it.")

    @classmethod
    def read(cls, folder: Path) -> "DraftVocabulary | None":
        """Read that of the drafter in a folder; None for the target's whole vocabulary. Raises `UsageError`."""
        file = folder / FILE_NAME
        if not file.is_file():
            return None
        try:
            ids = read_json(file)
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{file} cannot be read ({error}); fetch the drafter again.") from None
        if not isinstance(ids, list):
            raise UsageError(f"{file} is no list of token ids; fetch the drafter again.")
        return cls(tuple(ids))

    def write(self, folder: Path) -> None:
        """Write it into the drafter's folder."""
        (folder / FILE_NAME).write_text(json.dumps(self.target_ids) + "\n", "utf-8")

    @property
    def reserved_id(self) -> int:
        """The drafter's id of all tokens that it does not know."""
        return len(self.target_ids)

    def own_tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Convert tokens of the target to the drafter's own ids."""
        return tuple(self._own_ids.get(token, self.reserved_id) for token in tokens)

    def own_sampling(self, sampling: Sampling) -> Sampling:
        """Return a sampling without a constraint, and with scores shaped only for tokens that the drafter knows."""
        sampling = replace(sampling, constraint=None)
        shaping, own = sampling.shaping, self._own_ids
        if shaping is None:
            return sampling
        known = replace(
            shaping,
            logit_bias=tuple(TokenBias(own[one.token], one.bias) for one in shaping.logit_bias if one.token in own),
            bad_words=tuple(self.own_tokens(word) for word in shaping.bad_words if own.keys() >= set(word)),
            held_back=tuple(own[token] for token in shaping.held_back if token in own),
        )
        return replace(sampling, shaping=known)

    def target_choice(self, choice: Choice) -> Choice:
        """Convert a choice among the drafter's own ids to the target's."""
        ids = self.target_ids
        candidates = tuple((ids[token], probability) for token, probability in choice.candidates)
        return Choice(ids[choice.token], choice.margin, candidates)

    @cached_property
    def _own_ids(self) -> dict[int, int]:
        return {token: own for own, token in enumerate(self.target_ids)}


class ReducedVocabularyEngine(EngineAround):
    """Implements `cosine_engine.base.Engine` in target tokens around an engine of a drafter's own ids.

    The inner engine must draw the noise of the target's ids and choose no reserved id: it was made with the same
    `vocabulary`. Raises `UsageError` if the vocabulary has ids that the target, of `vocab_tokens`, does not have.
    """

    def __init__(self, inner: Engine, vocabulary: DraftVocabulary, *, vocab_tokens: int) -> None:
        if vocabulary.target_ids[-1] >= vocab_tokens:
            raise UsageError(
                f"The drafter knows a token {vocabulary.target_ids[-1]}, but its target has {vocab_tokens}: "
                "it was made for another target."
            )
        super().__init__(inner)
        self._vocabulary = vocabulary
        self._vocab_tokens = vocab_tokens
        unknown = vocab_tokens - len(vocabulary.target_ids)
        self._nats_an_unknown = math.log(unknown) if unknown else 0.0

    @property
    def vocab_tokens(self) -> int:
        return self._vocab_tokens

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        own = self._vocabulary.own_sampling(sampling)
        return self._inner.open(sampling=own, prompt_tokens=prompt_tokens, scope=scope)

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        return self._inner.reuse_prefix(sequence, self._vocabulary.own_tokens(tokens))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        if not all(0 <= token < self._vocab_tokens for row in rows for token in row.tokens):
            # The inner engine would take it for one that the drafter does not know.
            raise LocalProtocolError(f"A token id is outside the vocabulary of {self._vocab_tokens}.")
        own = [replace(row, tokens=self._vocabulary.own_tokens(row.tokens)) for row in rows]
        return [self._result(row, result) for row, result in zip(own, self._inner.forward(own), strict=True)]

    def _result(self, row: Row, result: RowResult) -> RowResult:
        nll = result.nll
        if nll is not None:
            # The reserved id has the joint probability of all tokens that it replaces.
            scored = row.tokens[1:]
            nll += scored.count(self._vocabulary.reserved_id) * self._nats_an_unknown / len(scored)
        return replace(result, choices=tuple(map(self._vocabulary.target_choice, result.choices)), nll=nll)
