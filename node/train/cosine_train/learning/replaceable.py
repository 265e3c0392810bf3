"""An engine whose model can be replaced while it is unused."""

from collections.abc import Callable

from cosine_engine.base import Engine, EngineAround
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


class ReplaceableEngine(EngineAround):
    """Implements `cosine_engine.base.Engine` around another one, with the same sequences.

    Passes are over open sequences, and a running pass keeps its own open: while `open_sequences` is 0 the inner
    engine is unused. `on_open` is called before a sequence is opened.
    """

    def __init__(self, inner: Engine, *, on_open: Callable[[], None]) -> None:
        super().__init__(inner)
        self._on_open = on_open
        self.open_sequences = 0

    def replace(self, engine: Engine) -> None:
        """Serve with another engine of the same tokens. Raises `LocalProtocolError` while a sequence is open."""
        if self.open_sequences or engine.vocab_tokens != self._inner.vocab_tokens:
            raise LocalProtocolError("an engine that is in use, or one of other tokens, cannot be replaced")
        self._inner = engine

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        self._on_open()
        sequence = super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        self.open_sequences += 1
        return sequence

    def release(self, sequence: int) -> None:
        super().release(sequence)
        self.open_sequences -= 1
