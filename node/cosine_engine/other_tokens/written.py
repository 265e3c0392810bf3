"""The base of engines whose text is written in other tokens and converted to the target's.

Such drafts are matched, not coupled: the writer continues greedily and shares no noise with the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cosine_engine.base import Choice, Row
from cosine_engine.kv_pool import PagePool
from cosine_engine.other_tokens.text_alignment import Plan
from cosine_engine.paged import PagedEngine
from cosine_engine.tree import SequenceTree


@dataclass(slots=True)
class Continuation:
    """The tokens of a text and of its continuation, the latter with probabilities."""

    tokens: list[int]
    probabilities: list[float] = field(default_factory=list)

    def after(self, tokens: Sequence[int]) -> tuple[int, float] | None:
        """Return the token that is written after a text, if it is known."""
        left = len(self.tokens) - len(tokens)
        return (self.tokens[-left], self.probabilities[-left]) if left > 0 and self.leads_to(tokens) else None

    def leads_to(self, tokens: Sequence[int]) -> bool:
        """Return True if a text is this one, or continues it by written tokens."""
        start = len(self.tokens) - len(self.probabilities)
        return len(tokens) >= start and self.tokens[: len(tokens)] == tokens

    def extend(self, plan: Plan) -> None:
        """Append written tokens."""
        self.tokens.extend(token for token, _ in plan)
        self.probabilities.extend(probability for _, probability in plan)


AnyContinuation = TypeVar("AnyContinuation", bound=Continuation)


class WrittenEngine(PagedEngine, Generic[AnyContinuation]):
    """`cosine_engine.base.Engine` without the pass, with the continuation of each sequence.

    The token after a node is the next written one, if the continuation contains the node. Pages are only counted.
    """

    def __init__(self, *, pool_tokens: int, **options: Any) -> None:
        """`options` are those of `PagedEngine`."""
        super().__init__(PagePool(tokens=pool_tokens), **options)
        self._continuations: dict[int, AnyContinuation] = {}

    def release(self, sequence: int) -> None:
        super().release(sequence)
        self._continuations.pop(sequence, None)

    def choices(self, tree: SequenceTree, row: Row) -> tuple[Choice, ...]:
        """Return the written token after each scored node of a row in its tree; without one token 0, margin 0."""
        known = self._continuations.get(row.sequence)
        found = []
        for name in row.nodes[row.scored_from :]:
            written = None if known is None else known.after(tree.tokens_to(name))
            chances = () if written is None else (written,)
            found.append(Choice(*(written or (0, 0.0)), chances[: row.candidates]))
        return tuple(found)
