"""What every engine does alike: its open sequences and the pages they hold."""

from collections.abc import Sequence

from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.sequences import Sequences
from cosine_protocol.request import Sampling


class PagedEngine:
    """The part of `cosine_node.engine.base.Engine` that concerns pages, not a model."""

    def __init__(self, *, pool_tokens: int) -> None:
        self._pool = PagePool(tokens=pool_tokens)
        self._sequences = Sequences(self._pool)

    @property
    def free_tokens(self) -> int:
        return self._pool.free_tokens

    @property
    def live_tokens(self) -> int:
        """Tokens held by all open sequences, shared ones by each; 0 once everything is released."""
        return self._sequences.live_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of released sequences that wait to be reused; `free_tokens` counts their pages as well."""
        return self._sequences.cached_tokens

    @property
    def open_sequences(self) -> int:
        return len(self._sequences)

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        return self._sequences.open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        return self._sequences.reuse_prefix(sequence, tokens)

    def reserve(self, sequence: int, tokens: int) -> None:
        self._sequences.reserve(sequence, tokens)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._sequences.keep(sequence, path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._sequences.prune(sequence, nodes)

    def abandon(self) -> None:
        """Passes of engines without a model are too short to be abandoned."""

    def release(self, sequence: int) -> None:
        self._sequences.release(sequence)
