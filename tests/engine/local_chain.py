"""A chain with all stages in this process."""

from collections import deque
from collections.abc import Sequence

from cosine_engine.base import RowResult
from cosine_node.stages.engine import StageEngine
from cosine_node.stages.operations import ChainLost, FeedRows, Operation, apply_to_books
from cosine_protocol.errors import CosineError
from tests.engine.staged import through


class LocalChain:
    """Implements `cosine_node.stages.operations.Chain`: operations wait until an answer is requested."""

    def __init__(self, stages: Sequence[StageEngine]) -> None:
        """Create it; the stages hold all layers of a model, in order and once each."""
        self._stages = stages
        self._waiting: deque[Operation] = deque()
        self._lost: ChainLost | None = None

    def submit(self, operation: Operation) -> None:
        if self._lost is None:
            self._waiting.append(operation)

    def results(self) -> Sequence[RowResult]:
        while self._lost is None:
            operation = self._waiting.popleft()
            try:
                found = self._through(operation)
            except CosineError as error:
                # Some stages have applied it, others not.
                self._lost = ChainLost(f"A stage failed: {error}")
                self._waiting.clear()
            else:
                if found is not None:
                    return found
        raise self._lost

    def _through(self, operation: Operation) -> list[RowResult] | None:
        if isinstance(operation, FeedRows):
            return through(self._stages, operation.rows)
        for stage in self._stages:
            apply_to_books(stage, operation)
        return None
