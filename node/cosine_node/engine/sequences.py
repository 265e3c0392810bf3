"""The open sequences of an engine and the pages they hold: the bookkeeping both engines share. Pure."""

from collections.abc import Sequence

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


class Sequences:
    """Sequences by number. Every method raises `LocalProtocolError` for a number that is not open."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._trees: dict[int, SequenceTree] = {}
        self._opened = 0

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def live_tokens(self) -> int:
        """Tokens in the prefixes and trees of all sequences."""
        return sum(tree.live_tokens for tree in self._trees.values())

    def open(self, *, sampling: Sampling, prompt_tokens: int) -> int:
        number = self._opened
        self._opened += 1
        self._trees[number] = SequenceTree(sampling=sampling, prompt_tokens=prompt_tokens)
        return number

    def tree(self, sequence: int) -> SequenceTree:
        tree = self._trees.get(sequence)
        if tree is None:
            raise LocalProtocolError(f"Sequence {sequence} is not open.")
        return tree

    def reserve(self, sequence: int, tokens: int) -> None:
        """Raises `OutOfPages`."""
        self.tree(sequence)
        self._pool.reserve({sequence: tokens})

    def feed(self, rows: Sequence[Row], *, vocab_tokens: int, context_tokens: int) -> list[SequenceTree]:
        """Check rows, take their slots and put them into their trees, all or none. Raises `OutOfPages`."""
        demands = {row.sequence: len(row.tokens) for row in rows}
        if len(demands) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        trees = [self.tree(row.sequence) for row in rows]
        indices = [tree.indices(row) for tree, row in zip(trees, rows, strict=True)]
        for row, places in zip(rows, indices, strict=True):
            _check_bounds(row, places, vocab_tokens=vocab_tokens, context_tokens=context_tokens)
        self._pool.reserve(demands)
        for tree, row, places in zip(trees, rows, indices, strict=True):
            tree.add(row, slots=self._pool.take(row.sequence, len(row.tokens)), indices=places)
        return trees

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._pool.give_back(sequence, self.tree(sequence).keep(path))

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._pool.give_back(sequence, self.tree(sequence).prune(nodes))

    def release(self, sequence: int) -> None:
        self.tree(sequence)
        del self._trees[sequence]
        self._pool.release(sequence)


def _check_bounds(row: Row, indices: Sequence[int], *, vocab_tokens: int, context_tokens: int) -> None:
    if not (min(row.tokens) >= 0 and max(row.tokens) < vocab_tokens):
        raise LocalProtocolError(f"A token id is outside the vocabulary of {vocab_tokens}.")
    if max(indices) >= context_tokens:
        raise LocalProtocolError(f"The sequence would be longer than the context of {context_tokens} tokens.")
