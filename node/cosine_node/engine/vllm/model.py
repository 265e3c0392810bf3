"""A model in the process of vLLM, with the lanes in its blocks."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from cosine_node.engine.base import PassAbandoned
from cosine_node.engine.lanes.lanes import FedToken, Floats
from cosine_node.engine.vllm.blocks import BlockLanes
from cosine_node.engine.vllm.process import ProcessLost, VllmProcess
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

RESTART_S: Final = 60.0
"""A process that ends sooner after its start is not replaced at once: the same pass would end the next one too."""


class VllmModel(BlockLanes):
    """Implements `cosine_node.engine.lanes.lanes.LaneModel`."""

    def __init__(
        self, start: Callable[[], VllmProcess], *, blocks: int, block_tokens: int, lanes: int, pass_tokens: int
    ) -> None:
        """`start` starts a process with a loaded model. Raises `UsageError`."""
        super().__init__(blocks=blocks, block_tokens=block_tokens)
        self.lanes = lanes
        self.pass_tokens = pass_tokens
        self._start = start
        self.process = start()
        self._started_s = time.monotonic()
        self._is_abandoned = False
        self._is_clearing = False

    @property
    def is_lost(self) -> bool:
        """True if the process has ended, and all keys and values with it."""
        return not self.process.close.alive

    def restart(self) -> None:
        """Start a process in place of a lost one. Raises `ProcessLost`."""
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
        self.process.run(
            {
                "rows": [(row.tokens, row.first, row.blocks) for row in rows],
                "wanted": wanted,
                "copies": copies,
                "is_clearing": self._is_clearing,
            }
        )
        self._is_clearing = False
        return self.process.logits[: len(wanted)]
