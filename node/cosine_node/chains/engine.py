"""The engine of a head, over a chain of stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_engine.base import Row, RowResult
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_node.chains.witness import Witness
from cosine_node.stages.operations import Chain, ChainLost, FeedRows, check_bounds
from cosine_protocol.request import Sampling
from cosine_protocol.stage import KeepPath, OpenSequence, PruneNodes, ReleaseSequence, ReserveRoom, ReusePrefix


@dataclass(frozen=True, slots=True)
class KeptText:
    """The kept tokens of an open sequence, and the scope that shares their pages."""

    sequence: int
    scope: str
    tokens: Sequence[int]


class ChainEngine(PagedEngine):
    """Implements `cosine_engine.base.Engine` over a chain of stages; not thread-safe.

    It manages pages and prefixes itself and sends the changes to the stages, whose pools have the same size. Once
    the chain is lost only `forward` fails, with `ChainLost`.
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
        """Records which passes computed which tokens, if stages are checked."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        sequence = super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        if scope is not None:
            self._scopes[sequence] = scope
        self._chain.submit(OpenSequence(sequence, sampling, prompt_tokens, scope))
        return sequence

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        known = super().reuse_prefix(sequence, tokens)
        if known:
            # One token more, since a whole prefix is never reused.
            self._chain.submit(ReusePrefix(sequence, tuple(tokens[: known + 1])))
        return known

    def reserve(self, sequence: int, tokens: int) -> None:
        missing = self._pool.missing_pages({sequence: tokens})
        super().reserve(sequence, tokens)
        if missing:
            self._chain.submit(ReserveRoom(sequence, tokens))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run one pass. Raises `LocalProtocolError`, `OutOfPages` or `ChainLost`, and then feeds nothing."""
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
        """Begin a pass over at least one row. Raises `LocalProtocolError` or `OutOfPages`; then nothing is fed."""
        check_bounds(rows)
        trees = self.feed(rows)
        if self.witness is not None:
            self.witness.note_fed(rows, trees)
        self._chain.submit(FeedRows(tuple(rows)))

    def end(self, rows: Sequence[Row], results: Sequence[RowResult]) -> list[RowResult]:
        """End the oldest pass; prune rows with an error."""
        if self.witness is not None:
            self.witness.note_answered(rows, results)
        for row, result in zip(rows, results, strict=True):
            tree = self._trees.get(row.sequence)
            if result.error is not None and tree is not None and not tree.nodes.keys().isdisjoint(row.nodes):
                self.prune(row.sequence, row.nodes)
        return list(results)

    def replace_chain(
        self, chain: Chain, pool: PagePool, *, first_sequence: int, witness: Witness | None = None
    ) -> None:
        """Continue over another chain, with no open sequences; their numbers go on from `first_sequence`."""
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
        """Continue over the chain of another engine with its cached prefixes; then no sequence is open."""
        for sequence in list(other._trees):
            other.release(sequence)
        self._trees, self._hashes, self._scopes = {}, {}, {}
        self._pool, self._prefixes, self.opened = other._pool, other._prefixes, other.opened
        self._chain, self.witness = other._chain, other.witness

    @property
    def texts(self) -> list[KeptText]:
        """The kept tokens of open sequences with a scope, the oldest first."""
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
