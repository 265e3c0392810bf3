"""The user's choices: pane, page, request, and the filter and order of the lists."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cosine_tui.state.snapshot import NodeView, RequestView, Snapshot


class PaneName(StrEnum):
    """The panes by their ids in `app.tcss`."""

    SWARM = "swarm"
    REQUESTS = "requests"
    REQUEST = "request"
    EVENTS = "events"


class PageKind(StrEnum):
    """Kinds of pages, which replace the panes."""

    HELP = "help"
    NODE = "node"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Page:
    """A page in place of the panes; `key` is a peer id, a request's number, or ""."""

    kind: PageKind
    key: str = ""


class Order(StrEnum):
    """Orders of a list, which stays in its usual order for unknown ones."""

    USUAL = "usual"
    SPEED = "speed"
    LOAD = "load"
    RTT = "rtt"
    SHARE = "share"
    TOKENS = "tokens"
    NEWEST = "newest"

    @property
    def next(self) -> "Order":
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


# Known values come before unknown ones.
_NODE_KEYS: Final[dict[Order, Callable[[NodeView], Any]]] = {
    Order.SPEED: lambda node: node.pass_ms,
    Order.LOAD: lambda node: -node.load / max(1, node.capacity),
    Order.RTT: lambda node: (node.rtt_ms is None, node.rtt_ms or 0.0),
    Order.SHARE: lambda node: -(node.tally.text_share or 0.0),
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


@dataclass(frozen=True, slots=True)
class Listing:
    """The words that all rows of a list contain, and its order."""

    words: str = ""
    order: Order = Order.USUAL

    def summary(self) -> str:
        order = "" if self.order is Order.USUAL else f"by {self.order}"
        return ", ".join(filter(None, (f"only {self.words!r}" if self.words else "", order)))

    def nodes(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        shown = []
        for node in nodes:
            record, state = node.record, "up" if node.is_up else "lost"
            if self._fits(node.title, record.peer_id, record.model, record.numerics, state, record.emulated):
                shown.append(node)
        return sorted(shown, key=_NODE_KEYS[self.order]) if self.order in _NODE_KEYS else shown

    def requests(self, requests: Iterable[RequestView]) -> list[RequestView]:
        """Return the requests to show, by default running ones first, of these the user's own, then the latest."""
        shown = []
        for request in requests:
            whose = "yours" if request.is_own else ""
            words = (whose, request.label, request.strategy, request.state.word, request.prompt)
            domains = (drafter.domain for drafter in request.drafters)
            if self._fits(str(request.number), *words, *request.verifiers, *domains):
                shown.append(request)
        return sorted(shown, key=_REQUEST_KEYS.get(self.order, _REQUEST_KEYS[Order.USUAL]))

    def _fits(self, *texts: str) -> bool:
        text = " ".join(texts).casefold()
        return all(word in text for word in self.words.casefold().split())


ALL: Final = Listing()  # Everything in its usual order.


@dataclass(slots=True)
class View:
    """The shown part of a snapshot, and the requests of the last warning on quitting."""

    pane: PaneName = PaneName.SWARM
    page: Page | None = None
    listing: Listing = ALL
    has_marks: bool = False
    _pinned: int | None = None
    _follows_own: bool = True
    _last_before_own: int | None = None
    _warned_of: frozenset[int] = field(default_factory=frozenset)

    def shown_request(self, snapshot: Snapshot) -> RequestView | None:
        """Return the chosen request, else the user's latest, else the oldest being written."""
        requests = snapshot.requests
        pinned = None if self._pinned is None else snapshot.request(self._pinned)
        if pinned is not None:
            return pinned
        own = [request for request in requests if request.is_own]
        if own and self._follows_own:
            return own[-1]
        writing = [request for request in requests if request.text and not request.state.is_over]
        return writing[0] if writing else (requests[-1] if requests else None)

    def pin_request(self, number: int) -> None:
        self._pinned = number

    def step_request(self, snapshot: Snapshot, step: int) -> None:
        numbers = [request.number for request in snapshot.requests]
        shown = self.shown_request(snapshot)
        if shown is not None:
            self._pinned = numbers[min(len(numbers) - 1, max(0, numbers.index(shown.number) + step))]

    def follow_latest(self) -> None:
        self._pinned, self._follows_own = None, False

    def follow_own(self, snapshot: Snapshot) -> None:
        """Show the user's latest request, which is in no snapshot yet."""
        self._pinned, self._follows_own = None, True
        self._last_before_own = max((request.number for request in snapshot.requests), default=0)

    def may_quit(self, snapshot: Snapshot) -> bool:
        """Return True if none of the user's requests runs without a warning before; else note a warning now."""
        own = self.own_running(snapshot)
        if own <= self._warned_of:
            return True
        self._warned_of = own
        return False

    def forget_warning(self) -> None:
        self._warned_of = frozenset()

    def own_running(self, snapshot: Snapshot) -> frozenset[int]:
        """Return the numbers of the user's running requests, also of one in no snapshot yet."""
        last = self._last_before_own
        own = {request.number for request in snapshot.running if request.is_own}
        if last is not None and not any(request.is_own and request.number > last for request in snapshot.requests):
            own.add(last + 1)
        return frozenset(own)
