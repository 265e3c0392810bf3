"""Gives back the memory of an idle node's model, and loads the model again for the next request.

Theory of operation
-------------------
The services of a node know its engines as `ReturnableEngine`s. `ModelMemory.wait` is called while there is no work.
After `after_s` of that, and unless a sequence is open, each engine is replaced by its bookkeeping: weights, KV
cache and device memory are released. The node stays announced, with a pass as long as the load.

Requests are accepted as before, since their sequences only need the bookkeeping. `wait` then loads the engines
again with the same options, opens these sequences there, and returns, so that the step loop continues as if the
model had stayed. A model with other numerics than announced counts as a failed load: passes fail for lack of
memory, clients choose other nodes, and the next request tries again.

Invariants: engines change only between passes; a sequence keeps its number; an unloaded model feeds nothing.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any, Final, Protocol

from cosine_engine.base import Engine, EngineAround, OutOfMemory, Row, RowResult, TargetActivations
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.processor import give_back_freed_memory
from cosine_protocol.errors import CosineError, UsageError
from cosine_protocol.request import Sampling
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)
WaitForWork = Callable[[asyncio.Event], Awaitable[object]]
"""Returns when the event is set. May use the engine until then."""
TELL_S: Final = 1.0
"""Clients leave a verifier that reports no progress for 3.5 s."""
FIRST_SEQUENCE: Final = 1 << 20
"""Above the numbers of sequences that measuring an engine opens."""


class ReportedProgress(Protocol):
    """The progress that a node reports to clients."""

    prefill_tokens: int


class _AbsentEngine(PagedEngine):
    """The bookkeeping of an engine whose model is not loaded."""

    def __init__(self, engine: Engine, *, first_sequence: int) -> None:
        super().__init__(
            PagePool(tokens=engine.free_tokens),
            vocab_tokens=engine.vocab_tokens,
            context_tokens=engine.context_tokens,
            numerics=engine.numerics,
            grammars=engine.grammars,
            first_sequence=first_sequence,
        )
        self.tells_likelihoods = engine.tells_likelihoods

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        raise OutOfMemory("the model could not be loaded again")


class ReturnableEngine(EngineAround):
    """An engine that can be replaced while no pass runs; its open sequences keep their numbers."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._open: dict[int, Callable[[Engine], int]] = {}
        self._next = FIRST_SEQUENCE
        inner.number_from(FIRST_SEQUENCE)

    @property
    def is_open(self) -> bool:
        """True if a sequence is open."""
        return bool(self._open)

    def drop(self) -> None:
        """Replace the engine by its bookkeeping."""
        self._inner = _AbsentEngine(self._inner, first_sequence=self._next)

    def take(self, engine: Engine) -> None:
        """Use an engine of the same model, with all open sequences, which are empty."""
        for number, begin in self._open.items():
            engine.number_from(number)
            begin(engine)
        engine.number_from(self._next)
        self._inner = engine

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        begin = methodcaller("open", sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)
        number: int = begin(self._inner)
        self._open[number] = begin
        self._next = number + 1
        return number

    def release(self, sequence: int) -> None:
        super().release(sequence)
        del self._open[sequence]

    def activations(self, sequence: int, first: int, last: int) -> TargetActivations:
        """The activations of a target that a draft head reads (`SeenLayers`)."""
        inner: Any = self._inner
        found: TargetActivations = inner.activations(sequence, first, last)
        return found


class ModelMemory:
    """The engines of one node, in the order in which `load` returns them again.

    load_s: Duration of the first load.
    after_s: Seconds without work after which the memory is given back.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        load: Callable[[], Awaitable[Sequence[Engine]]],
        *,
        model: str,
        load_s: float,
        after_s: float,
        emit: Emit,
    ) -> None:
        self.engines = tuple(map(ReturnableEngine, engines))
        self.until_loaded_s = 0.0
        """The time that the next pass waits for the model; 0 while it is loaded."""
        self._load_again = load
        self._model = model
        self._load_s = load_s
        self._after_s = after_s
        self._emit = emit

    async def wait(self, work: asyncio.Event, *, idle: WaitForWork, progress: ReportedProgress) -> None:
        """Return when there is work and the model is loaded; `idle` waits while it is.

        `progress` counts the seconds of a load as tokens of prompts: it is what the requests wait for.
        """
        if not self.until_loaded_s:
            await self._wait_loaded(work, idle)
            if work.is_set() or self._is_open:
                return
            self.until_loaded_s = self._load_s
            for engine in self.engines:
                engine.drop()
            _give_back()
            self._emit("unloaded", {"model": self._model, "said": f"about {self._load_s:.0f} s"})
        await work.wait()
        if self._is_open:
            await self._load(progress)

    @property
    def _is_open(self) -> bool:
        return any(engine.is_open for engine in self.engines)

    async def _wait_loaded(self, work: asyncio.Event, idle: WaitForWork) -> None:
        """Let `idle` wait for work, or until the time is over."""
        is_over = asyncio.Event()

        async def watch() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._after_s):
                    await work.wait()
            is_over.set()

        watching = asyncio.ensure_future(watch())
        try:
            await idle(is_over)
        finally:
            watching.cancel()

    async def _load(self, progress: ReportedProgress) -> None:
        now_s = asyncio.get_running_loop().time
        began_s, loading = now_s(), asyncio.ensure_future(self._load_again())
        try:
            while not loading.done():
                progress.prefill_tokens += 1
                await asyncio.wait([loading], timeout=TELL_S)
            loaded = loading.result()
            if [each.numerics for each in loaded] != [each.numerics for each in self.engines]:
                raise UsageError("it has other numerics now")
            for engine, again in zip(self.engines, loaded, strict=True):
                engine.take(again)
        except (CosineError, OSError, MemoryError, RuntimeError) as error:
            LOG.warning("%s cannot be loaded again; the next request tries once more: %s", self._model, error)
            return
        finally:
            loading.cancel()
        self.until_loaded_s, self._load_s = 0.0, now_s() - began_s


def _give_back() -> None:
    gc.collect()
    # Only if an engine has imported it.
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    give_back_freed_memory()
