"""A drafter with a reduced vocabulary, in its target's tokens.

A small drafter spends most of its weights on a large target's vocabulary, of which its domain uses a part. Its own
ids number the target's tokens that it knows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from cosine_engine.base import Choice
from cosine_p2p.storage.bounded_file import read_json
from cosine_protocol.errors import UsageError
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
        """The drafter's id of all unknown tokens."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTokens:
    """The tokens that an engine reads and chooses. Default: all ids of its model.

    Ids from `count` on have no token, and are never chosen. With a `vocabulary` the model has a drafter's own ids,
    and the engine those of its target, of which there are `target_tokens`. Raises `UsageError` for a vocabulary of
    another target.
    """

    count: int | None = None
    vocabulary: DraftVocabulary | None = None
    target_tokens: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary is not None and self.vocabulary.target_ids[-1] >= self.target_tokens:
            raise UsageError(
                f"The drafter knows a token {self.vocabulary.target_ids[-1]}, but its target has "
                f"{self.target_tokens}: it was made for another target."
            )


ALL_TOKENS: Final = KnownTokens()
