"""A model in the process of vLLM, with the lanes in its blocks, and the engine on it."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cosine_engine.base import OutOfMemory, PassAbandoned, Row, RowResult
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.lanes.lanes import FedToken, Floats
from cosine_engine.vllm.blocks import BlockLanes
from cosine_engine.vllm.process import ProcessLost, VllmProcess
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

RESTART_S: Final = 60.0
"""A process that ends sooner is not replaced at once: the same pass would end the next one too."""


class VllmModel(BlockLanes):
    """Implements `cosine_engine.lanes.lanes.LaneModel`."""

    def __init__(
        self, start: Callable[[], VllmProcess], *, blocks: int, block_tokens: int, lanes: int, pass_tokens: int
    ) -> None:
        """`start` starts a process with a loaded model. Raises `UsageError`."""
        super().__init__(blocks=blocks, block_tokens=block_tokens)
        self.lanes, self.pass_tokens = lanes, pass_tokens
        self._start = start
        self.process = start()
        self._started_s = time.monotonic()
        self._is_abandoned = self._is_clearing = False

    def restart(self) -> None:
        """Start a process in place of one that has ended. Raises `ProcessLost`."""
        if time.monotonic() - self._started_s < RESTART_S:
            raise ProcessLost(f"The process of vLLM ended within {RESTART_S:.0f} s of its start.")
        LOG.warning("the process of vLLM has ended, and is started again")
        self._started_s = time.monotonic()
        try:
            self.process = self._start()
        except UsageError as error:
            raise ProcessLost(str(error)) from None

    def clear(self) -> None:
        self._is_clearing = True

    def abandon(self) -> None:
        self._is_abandoned = True

    def begin(self) -> None:
        self._is_abandoned = False

    def logits(self, fed: Sequence[FedToken]) -> Floats:
        if self._is_abandoned:
            raise PassAbandoned("The pass was abandoned.")
        rows, found = self.rows(fed)
        wanted = [found[place] for place, token in enumerate(fed) if token.is_wanted]
        copies, self.copies = self.copies, []
        try:
            self.process.run(rows=rows, wanted=wanted, copies=copies, is_clearing=self._is_clearing)
        except OutOfMemory:
            self.copies = copies
            raise
        self._is_clearing = False
        return self.process.logits[: len(wanted)]


class VllmEngine(LaneEngine):
    """Implements `cosine_engine.base.Engine`; not thread-safe. `load_vllm` creates one."""

    def __init__(self, model: VllmModel, **options: Any) -> None:
        """`options` are those of `LaneEngine`."""
        super().__init__(model, **options)
        self.vllm = model
        self._is_stale = False
        model.make_room = partial(self._evict_until, lambda: model.free_blocks > 0)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass, as `LaneEngine.forward`.

        Raises `ProcessLost`, with nothing fed, if vLLM's process ends; a later pass starts another one, and feeds
        all prefixes again.
        """
        if self.vllm.process.has_ended:
            self.vllm.restart()
            self._is_stale = True
        if self._is_stale:
            self.vllm.begin()
            self._feed_anew()
            self._is_stale = False
        return super().forward(rows)
