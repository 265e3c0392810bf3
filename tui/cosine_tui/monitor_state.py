"""Everything the monitor has heard so far, and the snapshot it makes. No clock of its own, no network."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Final

from cosine_p2p.generation import Progress
from cosine_p2p.survey import NodeSight, Survey
from cosine_protocol.records import Role
from cosine_tui.formatting import short_name
from cosine_tui.node_events import node_events
from cosine_tui.snapshot import (
    ConnectionState,
    Event,
    EventKind,
    NodeView,
    Reachability,
    RequestState,
    Snapshot,
    SwarmConnection,
)
from cosine_tui.tracked_request import RequestDescription, TrackedRequest

MAX_EVENTS: Final = 200
KEPT_REQUESTS: Final = 24


class MonitorState:
    """Collects what sources tell. All times are seconds since the monitor began."""

    def __init__(self, *, title: str, target: str, note: str = "", began_unix_s: float | None = None) -> None:
        self.connection = SwarmConnection()
        self.nodes: dict[str, NodeView] = {}
        self._title = title
        self._target = target
        self._remark = note
        self._began_unix_s = began_unix_s
        self._problem = ""
        self._passes: dict[str, tuple[float, int]] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._requests: dict[int, TrackedRequest] = {}
        self._numbers = count(1)
        self._authors: dict[str, int] = {}
        self._accepted: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def number_of(self, peer_id: str) -> int:
        """The number a drafter has in every snapshot, from 1 in the order they were first seen."""
        return self._authors.setdefault(peer_id, len(self._authors) + 1)

    def mark_live(self, now_s: float) -> None:
        """The swarm is there."""
        if self.connection.state is ConnectionState.LIVE:
            return
        if self.connection.state is ConnectionState.LOST:
            self._note(EventKind.SWARM_FOUND, f"after {now_s - self.connection.since_s:.0f} s", now_s)
        self.connection = SwarmConnection(state=ConnectionState.LIVE, since_s=now_s)

    def mark_lost(self, reason: str, now_s: float, *, retry_at_s: float | None = None) -> None:
        """The swarm does not answer; the last that was seen of it stays."""
        since_s = self.connection.since_s
        if self.connection.state is not ConnectionState.LOST:
            self._note(EventKind.SWARM_LOST, reason, now_s)
            since_s = now_s
        self.connection = SwarmConnection(
            state=ConnectionState.LOST, since_s=since_s, reason=reason, retry_at_s=retry_at_s
        )

    def add_survey(self, survey: Survey, now_s: float) -> None:
        """A new look at all nodes."""
        self._problem = survey.problem
        nodes = [self._node(sight, now_s) for sight in survey.nodes]
        self._events.extend(node_events(self.nodes, nodes, now_s))
        self.nodes = {node.peer_id: node for node in nodes}

    def ask(self, asked: RequestDescription, now_s: float) -> TrackedRequest:
        """A request that begins now."""
        number = next(self._numbers)
        log = self._requests[number] = TrackedRequest(number, asked, began_s=now_s, number_of=self.number_of)
        self._forget_old()
        return log

    def note_progress(self, log: TrackedRequest, progress: Progress, now_s: float) -> None:
        """How far a request has come; a new verifier in the middle of it is an event."""
        before = log.progress
        if before is not None and len(progress.tried) > len(before.tried):
            for tried in progress.tried[len(before.tried) :]:
                then = f"{_names(progress.serving)} goes on" if progress.serving else "looking for another"
                text = f"request {log.number}: {_with_short_name(tried)}; {then} from token {log.tokens}"
                self._note(EventKind.FAILOVER, text, now_s)
        log.note_progress(progress, now_s)

    def end(
        self, log: TrackedRequest, state: RequestState, now_s: float, *, error: str = "", finish_reason: str = ""
    ) -> None:
        """A request is over."""
        log.end(state, now_s, error=error, finish_reason=finish_reason)
        for peer_id, accepted in log.tokens_of().items():
            self._accepted[peer_id] += accepted
            self._seen[peer_id] += log.tokens
        if state is RequestState.FAILED:
            self._note(EventKind.FAILED, f"request {log.number}: {error}", now_s)

    def snapshot(self, now_s: float) -> Snapshot:
        return Snapshot(
            at_s=now_s,
            began_unix_s=self._began_unix_s,
            title=self._title,
            target=self._target,
            note=self._note_line,
            problem=self._problem,
            connection=self.connection,
            nodes=tuple(self._with_share(node) for node in self.nodes.values()),
            requests=tuple(log.view() for log in self._requests.values()),
            events=tuple(self._events),
        )

    @property
    def _note_line(self) -> str:
        emulated = sorted({node.emulated for node in self.nodes.values() if node.emulated})
        return self._remark or (f"emulated devices: {', '.join(emulated)}" if emulated else "")

    def _note(self, kind: EventKind, text: str, now_s: float) -> None:
        self._events.append(Event(now_s, kind, text))

    def _node(self, sight: NodeSight, now_s: float) -> NodeView:
        record = sight.record
        old = self.nodes.get(record.peer_id)
        reachability = Reachability.LOST if sight.reason else Reachability.UP
        is_new = old is None or old.reachability is not reachability
        return NodeView(
            peer_id=record.peer_id,
            role=Role(record.role),
            domains=record.expertise,
            model=record.model,
            numerics=record.numerics,
            emulated=record.emulated,
            software=record.software,
            pass_ms=record.pass_us / 1e3,
            load=record.load_requests if sight.requests is None else sight.requests,
            capacity=record.capacity_requests,
            context_tokens=record.context_tokens,
            reachability=reachability,
            reason=sight.reason,
            since_s=now_s if is_new or old is None else old.since_s,
            rtt_ms=None if sight.rtt_s is None else 1e3 * sight.rtt_s,
            passes_per_s=self._passes_per_s(sight, now_s),
            uptime_s=sight.uptime_s,
            author=self.number_of(record.peer_id) if record.role == Role.DRAFTER else 0,
        )

    def _passes_per_s(self, sight: NodeSight, now_s: float) -> float | None:
        """Between the last two looks; a node that began anew counts from 0 again."""
        peer_id, passes = sight.record.peer_id, sight.passes
        if passes is None:
            self._passes.pop(peer_id, None)
            return None
        before_s, before = self._passes.get(peer_id, (now_s, passes))
        self._passes[peer_id] = (now_s, passes)
        return (passes - before) / (now_s - before_s) if now_s > before_s and passes >= before else None

    def _with_share(self, node: NodeView) -> NodeView:
        accepted, seen = self._accepted[node.peer_id], self._seen[node.peer_id]
        for log in self._requests.values():
            if not log.state.is_over and node.peer_id in (by_peer := log.tokens_of()):
                accepted += by_peer[node.peer_id]
                seen += log.tokens
        if not seen:
            return node
        return replace(node, text_share=accepted / seen, accepted_tokens=accepted)

    def _forget_old(self) -> None:
        over = [number for number, log in self._requests.items() if log.state.is_over]
        for number in over[: max(0, len(self._requests) - KEPT_REQUESTS)]:
            del self._requests[number]


def _names(peer_ids: Iterable[str]) -> str:
    return ", ".join(map(short_name, peer_ids))


def _with_short_name(tried: str) -> str:
    """`PEER was lost: reason` with the short name of the peer."""
    peer_id, space, rest = tried.partition(" ")
    return short_name(peer_id) + space + rest
