"""The interfaces of a drafter that learns, which the distribution `cosine-train` implements."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cosine_engine.base import Engine
    from cosine_engine.models.model import ServedModel
    from cosine_node.drafter.observer import DraftObserver
    from cosine_node.drafter.service import DrafterService
    from cosine_node.metrics.node import Series
    from cosine_node.serving.node_options import NodeOptions
    from cosine_terminal.events import Emit


class DraftLearner(Protocol):
    """Learns for one drafter, and replaces the weights that it serves with."""

    @property
    def engine(self) -> "Engine":
        """The engine to serve with."""

    @property
    def records(self) -> "DraftObserver":
        """The observer of the texts to learn from."""

    @property
    def model_name(self) -> str:
        """The name of the weights that serve, for the node's record."""

    @property
    def expertise(self) -> tuple[str, ...]:
        """The domains to announce."""

    def attach(self, service: "DrafterService", on_switch: Callable[[], None]) -> None:
        """Learn for a service. `on_switch` is called when other weights serve."""

    def run(self, emit: "Emit") -> Coroutine[Any, Any, None]:
        """Learn until cancelled."""

    def close(self) -> None:
        """End learning after drafting has ended."""

    def metrics(self) -> "Sequence[Series[Any]]":
        """The metrics of all learners of its kind."""


LearnerMaker = Callable[["ServedModel", "NodeOptions", str], DraftLearner]
"""Makes the learner of a loaded drafter from its options and peer id. Blocks; raises `UsageError`."""
