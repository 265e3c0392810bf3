"""The engine of a head: a model in parts, which looks like any other engine to what uses it."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_node.chains.witness import Witness
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.stages.operations import Chain, ChainLost, FeedRows, NotComputed, check_bounds
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import (
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)


@dataclass(frozen=True, slots=True)
class KeptText:
    """The tokens that an open sequence has kept so far, and who may share their pages."""

    sequence: int
    scope: str
    tokens: Sequence[int]


class ChainEngine(PagedEngine):
    """Implements `cosine_node.engine.base.Engine` over a chain of stages; not thread-safe.

    It decides about pages and prefixes by itself, and tells the stages, whose pools are as large, what it decided.
    Once the chain is lost `forward` raises `ChainLost`, and all else goes on without it.
    """

    def __init__(
        self,
        chain: Chain,
        pool: PagePool,
        *,
        vocab_tokens: int,
        context_tokens: int,
        numerics: str,
        first_sequence: int = 0,
    ) -> None:
        """`context_tokens` is the model's; a sequence is no longer than the pool either."""
        super().__init__(
            pool,
            vocab_tokens=vocab_tokens,
            context_tokens=min(context_tokens, pool.capacity_tokens),
            numerics=numerics,
            first_sequence=first_sequence,
        )
        self._chain = chain
        self._scopes: dict[int, str] = {}
        self.witness: Witness | None = None
        """Notes which passes computed what, where somebody wants to know."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        sequence = super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        if scope is not None:
            self._scopes[sequence] = scope
        self._chain.submit(OpenSequence(sequence, sampling, prompt_tokens, scope))
        return sequence

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        known = super().reuse_prefix(sequence, tokens)
        if known:
            # One token more, for a whole prefix is never reused.
            self._chain.submit(ReusePrefix(sequence, tuple(tokens[: known + 1])))
        return known

    def reserve(self, sequence: int, tokens: int) -> None:
        missing = self._pool.missing_pages({sequence: tokens})
        super().reserve(sequence, tokens)
        if missing:
            self._chain.submit(ReserveRoom(sequence, tokens))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass. Raises `LocalProtocolError`, `OutOfPages` or `ChainLost`: nothing is fed."""
        if not rows:
            return []
        self.begin(rows)
        try:
            results = self._chain.results()
        except ChainLost:
            self.unfeed(rows)
            raise
        return self.end(rows, results)

    def begin(self, rows: Sequence[Row]) -> None:
        """Begin a pass over at least one row, below nodes also of passes that have not ended.

        Raises `LocalProtocolError` or `OutOfPages`: nothing is fed.
        """
        check_bounds(rows)
        trees = self.feed(rows)
        if self.witness is not None:
            self.witness.note_fed(rows, trees)
        self._chain.submit(FeedRows(tuple(rows)))

    def end(self, rows: Sequence[Row], results: Sequence[RowResult]) -> list[RowResult]:
        """End the oldest pass with what the chain gave; rows without finite logits are taken back.

        Raises `ChainLost` where a stage left out what is wanted.
        """
        if self.witness is not None:
            self.witness.note_answered(rows, results)
        for row, result in zip(rows, results, strict=True):
            tree = self._trees.get(row.sequence)
            if result.error is None or tree is None or tree.nodes.keys().isdisjoint(row.nodes):
                continue
            if isinstance(result.error, NotComputed):
                raise ChainLost("A stage left out a pass that is wanted.")
            self.prune(row.sequence, row.nodes)
        return list(results)

    def replace_chain(
        self, chain: Chain, pool: PagePool, *, first_sequence: int, witness: Witness | None = None
    ) -> None:
        """Go on over another chain, with no sequence open; it counts them from `first_sequence`."""
        PagedEngine.__init__(
            self,
            pool,
            vocab_tokens=self.vocab_tokens,
            context_tokens=self.context_tokens,
            numerics=self.numerics,
            first_sequence=first_sequence,
        )
        self._chain = chain
        self._scopes = {}
        self.witness = witness

    def take_over(self, other: "ChainEngine") -> None:
        """Go on over the chain of another engine, which is used no more, with the prefixes that it has computed.

        No sequence is open then. It counts them on.
        """
        for sequence in list(other._trees):
            other.release(sequence)
        self._trees, self._hashes, self._scopes = {}, {}, {}
        self._pool, self._prefixes, self.opened = other._pool, other._prefixes, other.opened
        self._chain, self.witness = other._chain, other.witness

    @property
    def texts(self) -> list[KeptText]:
        """What open sequences have kept, the oldest first, of those that share their pages with later ones."""
        return [KeptText(sequence, scope, self._trees[sequence].tokens) for sequence, scope in self._scopes.items()]

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        super().keep(sequence, path)
        if path:
            self._chain.submit(KeepPath(sequence, tuple(path)))

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        alive = self.tree(sequence).nodes
        pruned = tuple(name for name in nodes if name in alive)
        super().prune(sequence, pruned)
        if pruned:
            self._chain.submit(PruneNodes(sequence, pruned))

    def release(self, sequence: int) -> None:
        if self.witness is not None:
            self.witness.note_ended(self.tree(sequence))
        super().release(sequence)
        self._scopes.pop(sequence, None)
        self._chain.submit(ReleaseSequence(sequence))
