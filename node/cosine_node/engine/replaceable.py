"""An engine whose model can be replaced while nobody uses it."""

from collections.abc import Callable, Sequence

from cosine_node.engine.base import Engine, Row, RowResult
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


class ReplaceableEngine:
    """Implements `cosine_node.engine.base.Engine` around another one, as whose sequences its own are known.

    Passes are over open sequences, and a pass under way keeps its own open: while `open_sequences` is 0 nothing
    uses the engine inside. `on_open` is called before a sequence is opened.
    """

    def __init__(self, inner: Engine, *, on_open: Callable[[], None]) -> None:
        self._inner = inner
        self._on_open = on_open
        self.open_sequences = 0

    def replace(self, engine: Engine) -> None:
        """Serve with another engine of the same tokens. Raises `LocalProtocolError` while a sequence is open."""
        if self.open_sequences or engine.vocab_tokens != self._inner.vocab_tokens:
            raise LocalProtocolError("an engine that is in use, or one of other tokens, cannot be replaced")
        self._inner = engine

    @property
    def vocab_tokens(self) -> int:
        return self._inner.vocab_tokens

    @property
    def context_tokens(self) -> int:
        return self._inner.context_tokens

    @property
    def numerics(self) -> str:
        return self._inner.numerics

    @property
    def free_tokens(self) -> int:
        return self._inner.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._inner.cached_tokens

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        self._on_open()
        sequence = self._inner.open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        self.open_sequences += 1
        return sequence

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        return self._inner.reuse_prefix(sequence, tokens)

    def reserve(self, sequence: int, tokens: int) -> None:
        self._inner.reserve(sequence, tokens)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        return self._inner.forward(rows)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._inner.keep(sequence, path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._inner.prune(sequence, nodes)

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        self._inner.release(sequence)
        self.open_sequences -= 1
