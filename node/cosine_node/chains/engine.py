"""The engine of a head, whose passes run over the links to stages."""

from collections.abc import Sequence

from cosine_engine.base import Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_node.chains.links import StageLinks
from cosine_node.chains.traces import Witness
from cosine_node.stages.frames import ChainLost, check_bounds
from cosine_protocol.request import Sampling
from cosine_protocol.stage import KeepPath, OpenSequence, PruneNodes, ReleaseSequence, ReserveRoom, ReusePrefix


class StagedEngine(PagedEngine):
    """Implements `cosine_engine.base.Engine` over the links to stages; not thread-safe.

    It manages pages and prefixes itself and sends the changes to the stages, whose pools have the same size. Once
    the links are lost only `forward` fails, with `ChainLost`.
    """

    def __init__(self, links: StageLinks, *, context_tokens: int, grammars: Grammars | None = None) -> None:
        """`context_tokens` is the model's; a sequence is no longer than the pool either.

        `grammars` apply while the last stage supports constraints.
        """
        self._context_tokens = context_tokens
        self._compiled = grammars
        self.go_on(links)

    def go_on(self, links: StageLinks, witness: Witness | None = None) -> None:
        """Continue over other links, with an empty pool and no open sequences, as the stages begin."""
        plan = links.plan
        pool = PagePool(tokens=plan.pool_tokens)
        super().__init__(
            pool,
            vocab_tokens=plan.vocab_tokens,
            context_tokens=min(self._context_tokens, pool.capacity_tokens),
            numerics=plan.numerics,
            first_sequence=plan.first_sequence,
        )
        self.use(links, witness)

    def use(self, links: StageLinks, witness: Witness | None = None) -> None:
        """Send all further operations over these links; `witness` records which passes computed which tokens."""
        self.links = links
        self.witness = witness
        self.grammars = self._compiled if links.applies_constraints else None

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        sequence = super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        self.links.submit(OpenSequence(sequence, sampling, prompt_tokens, scope))
        return sequence

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        known = super().reuse_prefix(sequence, tokens)
        if known:
            # One token more, since a whole prefix is never reused.
            self.links.submit(ReusePrefix(sequence, tuple(tokens[: known + 1])))
        return known

    def reserve(self, sequence: int, tokens: int) -> None:
        missing = self._pool.missing_pages({sequence: tokens})
        super().reserve(sequence, tokens)
        if missing:
            self.links.submit(ReserveRoom(sequence, tokens))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run one pass. Raises `LocalProtocolError`, `OutOfPages` or `ChainLost`, and then feeds nothing."""
        if not rows:
            return []
        self.begin(rows)
        try:
            results = self.links.results()
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
        self.links.feed(rows)

    def end(self, rows: Sequence[Row], results: Sequence[RowResult]) -> list[RowResult]:
        """End the oldest pass; prune rows with an error."""
        if self.witness is not None:
            self.witness.note_answered(rows, results)
        for row, result in zip(rows, results, strict=True):
            tree = self._trees.get(row.sequence)
            if result.error is not None and tree is not None and not tree.nodes.keys().isdisjoint(row.nodes):
                self.prune(row.sequence, row.nodes)
        return list(results)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        super().keep(sequence, path)
        if path:
            self.links.submit(KeepPath(sequence, tuple(path)))

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        alive = self.tree(sequence).nodes
        pruned = tuple(name for name in nodes if name in alive)
        super().prune(sequence, pruned)
        if pruned:
            self.links.submit(PruneNodes(sequence, pruned))

    def release(self, sequence: int) -> None:
        if self.witness is not None:
            self.witness.note_ended(self.tree(sequence))
        super().release(sequence)
        self.links.submit(ReleaseSequence(sequence))
