"""The reduced vocabulary of a drafter: the target's tokens that it knows, in the order of its own ids.

A small drafter spends most of its weights on a large target's vocabulary, of which its domain uses a part.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cosine_protocol.errors import UsageError

FILE_NAME: Final = "draft_vocabulary.json"
"""The file beside a drafter's weights: a list of the target's token ids, the first being the drafter's id 0."""
RESERVED_NOISE: Final = 0.5772156649015329
"""Euler's constant, the mean of the noise: many tokens of one joint probability score as one token of it would."""


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The target's ids of a drafter's own ids 0, 1, ...; all further ids of the drafter are `reserved_id`.

    The reserved id stands for every other token: it is what the drafter reads in its place, and its probability
    is that the target chooses one of them. Ids must rise, so that ties break in both vocabularies alike. Raises
    `UsageError`. Vocabularies compare by identity, for caches.
    """

    target_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.target_ids or any(type(token) is not int or token < 0 for token in self.target_ids):
            raise UsageError("A draft vocabulary must be a list of the target's token ids.")
        if any(low >= high for low, high in zip(self.target_ids, self.target_ids[1:], strict=False)):
            raise UsageError("The ids of a draft vocabulary must rise, each greater than the one before it.")

    @classmethod
    def read(cls, folder: Path) -> "DraftVocabulary | None":
        """That of the drafter in a folder; None if it has the target's whole vocabulary. Raises `UsageError`."""
        file = folder / FILE_NAME
        if not file.is_file():
            return None
        try:
            ids = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{file} cannot be read ({error}); fetch the drafter again.") from None
        if not isinstance(ids, list):
            raise UsageError(f"{file} is no list of token ids; fetch the drafter again.")
        return cls(tuple(ids))

    def write(self, folder: Path) -> None:
        """Store it beside the drafter's weights."""
        (folder / FILE_NAME).write_text(json.dumps(self.target_ids) + "\n", "utf-8")

    @property
    def reserved_id(self) -> int:
        """The drafter's id of all tokens that it does not know."""
        return len(self.target_ids)

    def own_tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens of the target as the drafter reads them."""
        return tuple(self._own_ids.get(token, self.reserved_id) for token in tokens)

    @cached_property
    def _own_ids(self) -> dict[int, int]:
        return {token: own for own, token in enumerate(self.target_ids)}
