"""The engine on vLLM: an engine of lanes, which feeds everything again after its process was lost."""

from collections.abc import Sequence
from typing import Any

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.lanes.engine import LaneEngine
from cosine_node.engine.vllm.model import VllmModel
from cosine_node.engine.vllm.process import VllmProcess


class VllmEngine(LaneEngine):
    """Implements `cosine_node.engine.base.Engine`; not thread-safe. `load_vllm` creates one."""

    def __init__(self, model: VllmModel, **options: Any) -> None:
        """`options` are those of `LaneEngine`."""
        super().__init__(model, **options)
        self._vllm = model
        self._is_stale = False
        model.make_room = self._forget_block

    @property
    def process(self) -> VllmProcess:
        return self._vllm.process

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass, as `LaneEngine.forward`.

        Raises `ProcessLost`, with nothing fed, if vLLM's process ends meanwhile; the next pass starts another one.
        """
        if self._vllm.is_lost:
            self._vllm.restart()
            self._is_stale = True
        if self._is_stale:
            self._vllm.begin()
            self._feed_anew()
            self._is_stale = False
        return super().forward(rows)

    def _forget_block(self) -> bool:
        """Evict cached prefixes until a block is free."""
        while not self._vllm.free_blocks:
            if not self._prefixes.forget_oldest():
                return False
            self._idle.tidy(self._prefixes_of_open())
        return True
