"""The base of engines with a KV pool: the open sequences, and the pages they hold. Pure, no tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from cosine_engine.base import Row
from cosine_engine.constraints.grammars import Grammars, guide_of
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_engine.prefix_cache import BlockHashes, PrefixCache
from cosine_engine.tree import SequenceTree
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling

SPARE_PAGES: Final = 3
"""The pages of a window in addition to its whole ones: one at its beginning, one at its end, one to fill."""


class PagedEngine:
    """`cosine_engine.base.Engine` without the pass, of which it does the bookkeeping (`feed`).

    Every method raises `LocalProtocolError` for the number of a sequence that is not open.
    """

    tells_likelihoods: bool = False
    """True if `forward` reports likelihoods."""

    def __init__(
        self,
        pool: PagePool,
        *,
        vocab_tokens: int,
        context_tokens: int,
        numerics: str,
        grammars: Grammars | None = None,
        first_sequence: int = 0,
    ) -> None:
        """`grammars` are the constraints on choices, if the engine chooses by logits of known tokens.

        `first_sequence` is the number of the first sequence.
        """
        self._pool = pool
        self.vocab_tokens = vocab_tokens
        self.context_tokens = context_tokens
        self.numerics = numerics
        self._prefixes = PrefixCache(pool)
        self._trees: dict[int, SequenceTree] = {}
        # Only sequences with a scope have hashes, since the others share nothing.
        self._hashes: dict[int, BlockHashes] = {}
        self.grammars = grammars
        self.opened = first_sequence
        """The number of the next sequence."""

    @property
    def free_tokens(self) -> int:
        return self._pool.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._prefixes.cached_tokens

    @property
    def live_tokens(self) -> int:
        """Tokens in the prefixes and trees of all open sequences; shared ones count in each."""
        return sum(tree.live_tokens for tree in self._trees.values())

    @property
    def open_sequences(self) -> int:
        return len(self._trees)

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        number = self.opened
        self.opened += 1
        if scope is not None:
            self._hashes[number] = BlockHashes(scope)
        guide = guide_of(self.grammars, sampling)
        self._trees[number] = SequenceTree(sampling=sampling, prompt_tokens=prompt_tokens, guide=guide)
        return number

    def number_from(self, first: int) -> None:
        self.opened = max(self.opened, first)

    def tree(self, sequence: int) -> SequenceTree:
        """Return the prefix and the live nodes of an open sequence."""
        tree = self._trees.get(sequence)
        if tree is None:
            raise LocalProtocolError(f"Sequence {sequence} is not open.")
        return tree

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        tree = self.tree(sequence)
        if tree.live_tokens:
            raise LocalProtocolError(f"Sequence {sequence} is not empty.")
        hashes = self._hashes.get(sequence)
        if hashes is None:
            return 0
        slots = self._prefixes.reuse(sequence, hashes, tokens)
        tree.begin(tokens[: len(slots)], slots)
        return len(slots)

    def reserve(self, sequence: int, tokens: int) -> None:
        self.tree(sequence)
        self._reserve({sequence: tokens})

    def _reserve(self, demands: Mapping[int, int]) -> None:
        missing = self._pool.missing_pages(demands)
        # Checked before any eviction, so that nothing changes without room.
        self._pool.check_available(missing)
        self._prefixes.make_room(missing)
        self._pool.reserve(demands)

    def feed(self, rows: Sequence[Row]) -> list[SequenceTree]:
        """Check rows, allocate their slots and put them into their trees, all or none; return these trees.

        Raises `LocalProtocolError` or `OutOfPages`.
        """
        demands = {row.sequence: len(row.tokens) for row in rows}
        if len(demands) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        trees = [self.tree(row.sequence) for row in rows]
        for tree, row in zip(trees, rows, strict=True):
            tree.check(row, vocab_tokens=self.vocab_tokens, context_tokens=self.context_tokens)
        self._reserve(demands)
        for tree, row in zip(trees, rows, strict=True):
            tree.add(row, self._pool.allocate(row.sequence, len(row.tokens)))
        return trees

    @contextmanager
    def feeding(self, rows: Sequence[Row]) -> Iterator[list[tuple[SequenceTree, Row]]]:
        """`feed` rows for the pass within the context, and yield each with its tree. Undone if the pass raises."""
        trees = self.feed(rows)
        try:
            yield list(zip(trees, rows, strict=True))
        except BaseException:
            self.unfeed(rows)
            raise

    def unfeed(self, rows: Sequence[Row]) -> None:
        """Undo `feed` after a failed pass."""
        for row in rows:
            self.prune(row.sequence, row.nodes)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        tree = self.tree(sequence)
        if not path:
            return
        self._pool.free(sequence, [node.slot for node in tree.keep(path)])
        if hashes := self._hashes.get(sequence):
            self._prefixes.extend(hashes, tree.tokens, tree.slots)
        # The window pages that no further token can see are given back, but rarely: less than a whole page in
        # addition to partly used ones is not worth the check.
        windows = self._pool.windows
        if windows is None or (self._pool.near_pages(sequence) - SPARE_PAGES) * PAGE_TOKENS < windows.window_tokens:
            return
        first = max(0, len(tree.tokens) - windows.window_tokens + 1)
        near = {slot // PAGE_TOKENS for slot in tree.slots[first:]}
        near |= {node.slot // PAGE_TOKENS for node in tree.nodes.values()}
        self._pool.look_only_at(sequence, near)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._pool.free(sequence, [node.slot for node in self.tree(sequence).prune(nodes)])

    def abandon(self) -> None:
        """Do nothing: passes of engines without a model are too short to be abandoned."""

    def release(self, sequence: int) -> None:
        tree = self.tree(sequence)
        del self._trees[sequence]
        if hashes := self._hashes.pop(sequence, None):
            self._prefixes.leave(hashes, tree.slots)
        self._pool.release(sequence)
