"""The links of a chain with all stages in this process."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from cosine_engine.base import Row, RowResult
from cosine_node.chains.links import ChainPlan, StageLinks
from cosine_node.chains.search import StagePlace
from cosine_node.stages.frames import ChainLost, apply_to_books
from cosine_node.stages.host import StageEngine
from cosine_protocol.errors import CosineError
from cosine_protocol.stage import BookOperation
from tests.engine.staged import through


class LocalLinks(StageLinks):
    """Operations wait until an answer is requested; the stages hold all layers in order and once each."""

    applies_constraints = True

    def __init__(self, stages: Sequence[StageEngine]) -> None:
        places = [StagePlace(f"stage {number}", stage.model.layers) for number, stage in enumerate(stages)]
        self.plan = ChainPlan(
            places=tuple(places),
            target_digest=bytes(32),
            numerics=stages[0].numerics,
            vocab_tokens=stages[0].vocab_tokens,
            pool_tokens=stages[0].free_tokens,
            first_sequence=stages[0].opened,
        )
        self._stages = stages
        self._waiting: deque[Callable[[], list[RowResult] | None]] = deque()
        self._lost: ChainLost | None = None

    def submit(self, operation: BookOperation) -> None:
        self._waiting += [partial(apply_to_books, stage, operation) for stage in self._stages]

    def feed(self, rows: Sequence[Row]) -> None:
        self._waiting.append(partial(through, self._stages, rows))

    def results(self) -> Sequence[RowResult]:
        while self._lost is None:
            try:
                found = self._waiting.popleft()()
            except CosineError as error:
                # Some stages have applied it, others not.
                self._lost = ChainLost(f"A stage failed: {error}")
            else:
                if found is not None:
                    return found
        raise self._lost
