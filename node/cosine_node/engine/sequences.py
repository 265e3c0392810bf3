"""The open sequences of an engine and the pages they hold: the bookkeeping all engines share. Pure."""

from collections.abc import Mapping, Sequence

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.prefix_cache import Chain, PrefixCache
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


class Sequences:
    """Sequences by number. Every method raises `LocalProtocolError` for a number that is not open."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._prefixes = PrefixCache(pool)
        self._trees: dict[int, SequenceTree] = {}
        self._chains: dict[int, Chain] = {}
        self._opened = 0

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def live_tokens(self) -> int:
        """Tokens in the prefixes and trees of all open sequences; shared ones count in each."""
        return sum(tree.live_tokens for tree in self._trees.values())

    @property
    def cached_tokens(self) -> int:
        """Tokens of released sequences that a new one may adopt and that no open one has."""
        return self._prefixes.cached_tokens

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        number = self._opened
        self._opened += 1
        if scope is not None:
            self._chains[number] = Chain(scope)
        self._trees[number] = SequenceTree(sampling=sampling, prompt_tokens=prompt_tokens)
        return number

    def tree(self, sequence: int) -> SequenceTree:
        tree = self._trees.get(sequence)
        if tree is None:
            raise LocalProtocolError(f"Sequence {sequence} is not open.")
        return tree

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """As `cosine_node.engine.base.Engine.reuse_prefix` says."""
        tree = self.tree(sequence)
        if tree.live_tokens:
            raise LocalProtocolError(f"Sequence {sequence} is not empty.")
        chain = self._chains.get(sequence)
        if chain is None:
            return 0
        slots = self._prefixes.reuse(sequence, chain, tokens)
        tree.begin(tokens[: len(slots)], slots)
        return len(slots)

    def reserve(self, sequence: int, tokens: int) -> None:
        """Raises `OutOfPages`."""
        self.tree(sequence)
        self._reserve({sequence: tokens})

    def _reserve(self, demands: Mapping[int, int]) -> None:
        self._prefixes.make_room(self._pool.missing_pages(demands))
        self._pool.reserve(demands)

    def feed(self, rows: Sequence[Row], *, vocab_tokens: int, context_tokens: int) -> list[SequenceTree]:
        """Check rows, take their slots and put them into their trees, all or none. Raises `OutOfPages`."""
        demands = {row.sequence: len(row.tokens) for row in rows}
        if len(demands) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        trees = [self.tree(row.sequence) for row in rows]
        indices = [tree.indices(row) for tree, row in zip(trees, rows, strict=True)]
        for row, places in zip(rows, indices, strict=True):
            _check_bounds(row, places, vocab_tokens=vocab_tokens, context_tokens=context_tokens)
        self._reserve(demands)
        for tree, row, places in zip(trees, rows, indices, strict=True):
            tree.add(row, slots=self._pool.allocate(row.sequence, len(row.tokens)), indices=places)
        return trees

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        tree = self.tree(sequence)
        self._pool.free(sequence, tree.keep(path))
        if chain := self._chains.get(sequence):
            self._prefixes.extend(chain, tree.tokens, tree.slots)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._pool.free(sequence, self.tree(sequence).prune(nodes))

    def release(self, sequence: int) -> None:
        tree = self.tree(sequence)
        del self._trees[sequence]
        if chain := self._chains.pop(sequence, None):
            self._prefixes.leave(chain, tree.slots)
        self._pool.release(sequence)


def _check_bounds(row: Row, indices: Sequence[int], *, vocab_tokens: int, context_tokens: int) -> None:
    if not (min(row.tokens) >= 0 and max(row.tokens) < vocab_tokens):
        raise LocalProtocolError(f"A token id is outside the vocabulary of {vocab_tokens}.")
    if max(indices) >= context_tokens:
        raise LocalProtocolError(f"The sequence would be longer than the context of {context_tokens} tokens.")
