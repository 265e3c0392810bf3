"""The state of the monitor: nodes, requests and events, and their snapshot. It uses no clock and no network."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from typing import Final

from cosine_p2p.request.results import Generation, Progress
from cosine_p2p.survey import NodeSight, Survey
from cosine_p2p.trust.denied_peers import Ban
from cosine_protocol.records import Role
from cosine_tui.looks.formatting import counted, short_name
from cosine_tui.state.snapshot import (
    ConnectionState,
    Event,
    EventKind,
    Moment,
    NodeView,
    RequestDescription,
    RequestState,
    Snapshot,
    SwarmConnection,
    Tally,
)
from cosine_tui.state.tracked_request import TrackedRequest

# Bounds of memory, beyond what users scroll back to.
MAX_EVENTS: Final = 200
KEPT_REQUESTS: Final = 24
KEPT_FAILURES: Final = 8


class MonitorState:
    """Collects surveys and requests from a source. All times are seconds since the monitor began."""

    def __init__(self, *, title: str, target: str, note: str = "", began_unix_s: float | None = None) -> None:
        self.connection = SwarmConnection()
        self.nodes: dict[str, NodeView] = {}
        self.bans: tuple[Ban, ...] = ()
        self._title = title
        self._target = target
        self._note_text = note
        self._began_unix_s = began_unix_s
        self._problem = ""
        self._passes: dict[str, tuple[float, int]] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._requests: dict[int, TrackedRequest] = {}
        self._numbers = count(1)
        self._authors: dict[str, int] = {}
        self._tallies: dict[str, Tally] = {}

    def number_of(self, peer_id: str) -> int:
        """Return the number, from 1, of a drafter in all snapshots."""
        return self._authors.setdefault(peer_id, len(self._authors) + 1)

    def mark_live(self, now_s: float) -> None:
        if self.connection.state is ConnectionState.LIVE:
            return
        if self.connection.state is ConnectionState.LOST:
            self._note(EventKind.SWARM_FOUND, f"after {now_s - self.connection.since_s:.0f} s", now_s)
        self.connection = SwarmConnection(state=ConnectionState.LIVE, since_s=now_s)

    def mark_lost(self, reason: str, now_s: float, *, retry_at_s: float | None = None) -> None:
        """Note that the swarm does not answer; its last nodes stay."""
        since_s = self.connection.since_s
        if self.connection.state is not ConnectionState.LOST:
            self._note(EventKind.SWARM_LOST, reason, now_s)
            since_s = now_s
        self.connection = SwarmConnection(
            state=ConnectionState.LOST, since_s=since_s, reason=reason, retry_at_s=retry_at_s
        )

    def add_survey(self, survey: Survey, now_s: float) -> None:
        """Replace the nodes, with events for nodes that joined, left or became unreachable."""
        self._problem = survey.problem
        self._target = survey.target
        nodes = [self._node_view(seen, now_s) for seen in survey.nodes]
        self._events.extend(node_events(self.nodes, nodes, now_s))
        self.nodes = {node.peer_id: node for node in nodes}

    def add_request(self, asked: RequestDescription, now_s: float) -> TrackedRequest:
        """Track a request, and forget the oldest finished ones."""
        number = next(self._numbers)
        request = self._requests[number] = TrackedRequest(number, asked, began_s=now_s, number_of=self.number_of)
        over = [number for number, other in self._requests.items() if other.state.is_over]
        for number in over[: max(0, len(self._requests) - KEPT_REQUESTS)]:
            del self._requests[number]
        return request

    def note_progress(self, request: TrackedRequest, progress: Progress, now_s: float) -> None:
        """Note the progress of a request, with an event for each verifier lost."""
        before = request.progress
        for tried in progress.tried[len(before.tried) :] if before is not None else ():
            peer_id, space, reason = tried.partition(" ")
            tally = self._tallies.get(peer_id, Tally())
            failures = (*tally.failures, Moment(now_s, f"request {request.number}: it {reason}"))
            self._tallies[peer_id] = replace(tally, failed=tally.failed + 1, failures=failures[-KEPT_FAILURES:])
            names = ", ".join(map(short_name, progress.serving))
            then = f"{names} goes on" if progress.serving else "looking for another"
            lost = f"{short_name(peer_id)}{space}{reason}"
            text = f"request {request.number}: {lost}; {then} from token {request.tokens}"
            self._note(EventKind.FAILOVER, text, now_s)
        request.note_progress(progress, now_s)

    def end_request(
        self,
        request: TrackedRequest,
        state: RequestState,
        now_s: float,
        *,
        error: str = "",
        account: Generation | None = None,
    ) -> None:
        request.end(state, now_s, error=error, account=account)
        for peer_id in request.peer_ids:
            self._tallies[peer_id] = _with_request(self._tallies.get(peer_id, Tally()), peer_id, request)
        if state is RequestState.FAILED:
            self._note(EventKind.FAILED, f"request {request.number}: {error}", now_s)

    def snapshot(self, now_s: float) -> Snapshot:
        tallies = self._tallies_now()
        emulated = sorted({node.record.emulated for node in self.nodes.values() if node.record.emulated})
        return Snapshot(
            at_s=now_s,
            began_unix_s=self._began_unix_s,
            title=self._title,
            target=self._target,
            note=self._note_text or (f"emulated devices: {', '.join(emulated)}" if emulated else ""),
            problem=self._problem,
            connection=self.connection,
            nodes=tuple(replace(node, tally=tallies.get(node.peer_id, Tally())) for node in self.nodes.values()),
            bans=self.bans,
            requests=tuple(request.view() for request in self._requests.values()),
            events=tuple(self._events),
        )

    def _note(self, kind: EventKind, text: str, now_s: float) -> None:
        self._events.append(Event(now_s, kind, text))

    def _node_view(self, seen: NodeSight, now_s: float) -> NodeView:
        record = seen.record
        old = self.nodes.get(record.peer_id)
        return NodeView(
            **{field.name: getattr(seen, field.name) for field in fields(seen)},
            since_s=now_s if old is None or old.is_up is bool(seen.reason) else old.since_s,
            passes_per_s=self._passes_per_s(seen, now_s),
            author=self.number_of(record.peer_id) if record.role == Role.DRAFTER else 0,
        )

    def _passes_per_s(self, seen: NodeSight, now_s: float) -> float | None:
        """Return the rate between the last two surveys; None after a restart of the node."""
        peer_id, passes = seen.record.peer_id, seen.passes
        if passes is None:
            self._passes.pop(peer_id, None)
            return None
        before_s, before = self._passes.get(peer_id, (now_s, passes))
        self._passes[peer_id] = (now_s, passes)
        return (passes - before) / (now_s - before_s) if now_s > before_s and passes >= before else None

    def _tallies_now(self) -> dict[str, Tally]:
        tallies = dict(self._tallies)
        for request in self._requests.values():
            if not request.state.is_over:
                for peer_id in request.peer_ids:
                    tallies[peer_id] = _with_request(tallies.get(peer_id, Tally()), peer_id, request)
        return tallies


def _with_request(tally: Tally, peer_id: str, request: TrackedRequest) -> Tally:
    reports = request.progress.drafters if request.progress else ()
    report = next((report for report in reports if report.peer_id == peer_id), None)
    if report is None:
        return replace(tally, requests=tally.requests + 1)
    return replace(
        tally,
        requests=tally.requests + 1,
        drafted=tally.drafted + report.drafted,
        accepted=tally.accepted + report.accepted,
        text_tokens=tally.text_tokens + request.tokens,
    )


def node_events(before: Mapping[str, NodeView], after: Sequence[NodeView], now_s: float) -> Iterator[Event]:
    """Yield the events of nodes that joined, left or changed their reachability; the first survey is one event."""
    if not before:
        if after:
            roles = Counter(node.role for node in after)
            stages = f" and {counted(roles[Role.STAGE], 'stage')}" if roles[Role.STAGE] else ""
            lost = sum(not node.is_up for node in after)
            rest = f", {lost:,} of them unreachable" if lost else ""
            verifiers, drafters = counted(roles[Role.VERIFIER], "verifier"), counted(roles[Role.DRAFTER], "drafter")
            found = f"{verifiers} and {drafters}{stages}{rest}"
            yield Event(now_s, EventKind.JOINED, f"found {found}")
        return
    present = {node.peer_id for node in after}
    for node in after:
        old = before.get(node.peer_id)
        if old is None:
            yield Event(now_s, EventKind.JOINED, node.title)
        if not node.is_up and (old is None or old.is_up):
            yield Event(now_s, EventKind.UNREACHABLE, f"{node.title}: {node.reason}")
        elif node.is_up and old is not None and not old.is_up:
            yield Event(now_s, EventKind.REACHABLE, node.title)
    for peer_id, node in before.items():
        if peer_id not in present:
            yield Event(now_s, EventKind.LEFT, node.title)


def why_lost(survey: Survey, *, has_known_nodes: bool) -> str:
    """Return why the swarm counts as lost after a survey; "" if it does not."""
    if any(not node.reason for node in survey.nodes):
        return ""
    if survey.problem:
        return survey.problem
    if survey.nodes:
        return f"none of {len(survey.nodes)} announced nodes answers"
    return "nobody is announced any more" if has_known_nodes else ""
