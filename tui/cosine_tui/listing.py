"""The nodes and requests that lists show: those that fit a filter, in an order."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cosine_tui.node_events import node_title
from cosine_tui.snapshot import NodeView, RequestView


class Order(StrEnum):
    """Orders of a list; a list that does not know one stays in its usual order."""

    USUAL = "usual"
    SPEED = "speed"
    LOAD = "load"
    RTT = "rtt"
    SHARE = "share"
    TOKENS = "tokens"
    NEWEST = "newest"

    @property
    def next(self) -> "Order":
        """The one after this; after the last comes the first."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True)
class Listing:
    """The words that all must be found in what is shown, and an order."""

    words: str = ""
    order: Order = Order.USUAL

    def summary(self) -> str:
        """What is not as usual, else ""."""
        order = "" if self.order is Order.USUAL else f"by {self.order}"
        return ", ".join(filter(None, (f"only {self.words!r}" if self.words else "", order)))

    def nodes(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes to show, in order."""
        shown = [node for node in nodes if self._fits(node_words(node))]
        return sorted(shown, key=_NODE_KEYS[self.order]) if self.order in _NODE_KEYS else shown

    def requests(self, requests: Iterable[RequestView]) -> list[RequestView]:
        """The requests to show, in order: usually running ones first, of these the user's own, then the latest."""
        shown = [request for request in requests if self._fits(request_words(request))]
        return sorted(shown, key=_REQUEST_KEYS.get(self.order, _REQUEST_KEYS[Order.USUAL]))

    def _fits(self, text: str) -> bool:
        return all(word in text for word in self.words.casefold().split())


ALL: Final = Listing()
"""Everything in its usual order."""


def node_words(node: NodeView) -> str:
    """The text of a node that a filter looks in."""
    record = node.record
    words = (node_title(node), record.peer_id, record.model, record.numerics, node.reachability, record.emulated)
    return " ".join(words).casefold()


def request_words(request: RequestView) -> str:
    """The text of a request that a filter looks in."""
    whose = "yours" if request.is_own else ""
    words = (f"{request.number}", whose, request.label, request.strategy, request.state.word, request.prompt)
    domains = (drafter.domain for drafter in request.drafters)
    return " ".join((*words, *request.verifiers, *domains)).casefold()


# What is known comes before what is not.
_NODE_KEYS: Final[dict[Order, Callable[[NodeView], Any]]] = {
    Order.SPEED: lambda node: node.pass_ms,
    Order.LOAD: lambda node: -node.load / max(1, node.capacity),
    Order.RTT: lambda node: (node.rtt_ms is None, node.rtt_ms or 0.0),
    Order.SHARE: lambda node: -(node.standing.text_share or 0.0),
}
_REQUEST_KEYS: Final[dict[Order, Callable[[RequestView], Any]]] = {
    Order.USUAL: lambda request: (
        request.state.is_over,
        -request.number if request.state.is_over else not request.is_own,
        request.number,
    ),
    Order.SPEED: lambda request: -request.tokens_per_s,
    Order.TOKENS: lambda request: -request.tokens,
    Order.NEWEST: lambda request: -request.number,
}
