"""The engine of a head: a model in parts, which looks like any other engine to what uses it."""

from collections.abc import Sequence
from contextlib import ExitStack

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.operations import Chain, ChainLost, FeedRows, NotComputed, check_bounds
from cosine_node.engine.paged import PagedEngine
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import (
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)


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

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        sequence = super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
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
        check_bounds(rows)
        self.feed(rows)
        self._chain.submit(FeedRows(tuple(rows)))
        with ExitStack() as on_error:
            on_error.callback(self.unfeed, rows)
            results = list(self._chain.results())
            if any(isinstance(result.error, NotComputed) for result in results):
                # Nothing was dropped meanwhile.
                raise ChainLost("A stage left out a pass that is wanted.")
            on_error.pop_all()
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results

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
        super().release(sequence)
        self._chain.submit(ReleaseSequence(sequence))
