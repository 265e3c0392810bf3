"""A drafter that knows the texts that will come, and is often right."""

from collections.abc import Sequence

from cosine_node.engine.base import Choice, Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine


class TextDrafter(PagedEngine):
    """Knows what follows in given texts, and puts a wrong token before the right one at every third position."""

    def __init__(self, texts: Sequence[Sequence[int]], *, vocab_tokens: int, wrong_at: int) -> None:
        super().__init__(
            PagePool(tokens=65_536), vocab_tokens=vocab_tokens, context_tokens=2048, numerics="knows the texts"
        )
        self._following = {tuple(text[:end]): text[end] for text in texts for end in range(1, len(text))}
        self._wrong_at = wrong_at

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        return [
            RowResult(tuple(self._choice(tuple(tree.tokens_to(name))) for name in row.nodes[row.scored_from :]))
            for tree, row in zip(self.feed(rows), rows, strict=True)
        ]

    def _choice(self, path: tuple[int, ...]) -> Choice:
        right = self._following.get(path)
        if right is None:
            return Choice(0, 1.0)
        wrong = (right + 1) % self._vocab_tokens
        ranked = (wrong, right) if len(path) % 3 == self._wrong_at else (right, wrong)
        return Choice(ranked[0], 1.0, ((ranked[0], 0.6), (ranked[1], 0.3)))
