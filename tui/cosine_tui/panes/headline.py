"""The two lines on top: the state of the monitor's connection, and the counts of nodes and requests."""

from typing import Final

from cosine_protocol.records import Role
from cosine_tui import formatting
from cosine_tui.snapshot import ConnectionState, Reachability, Snapshot
from cosine_tui.styled_text import Line, Span, Tone, cut, spread, wrap

# The sign and the tone of each state of the connection.
_SIGNS: Final = {ConnectionState.JOINING: "…", ConnectionState.LIVE: "●", ConnectionState.LOST: "✗"}
_TONES: Final = {
    ConnectionState.JOINING: Tone.WARNING,
    ConnectionState.LIVE: Tone.GOOD,
    ConnectionState.LOST: Tone.BAD,
}


def headline(snapshot: Snapshot, width: int) -> list[Line]:
    """Both lines on `width` cells, the second wrapped where it tells what is wrong."""
    state = snapshot.connection.state
    counts = (
        _count(snapshot, Role.VERIFIER),
        _count(snapshot, Role.DRAFTER),
        formatting.counted(len(snapshot.running), "request"),
    )
    left = (Span("CoSine", Tone.STRONG),)
    right = (
        Span(f"{_SIGNS[state]} {state.value} ", _TONES[state]),
        Span(formatting.duration(snapshot.at_s - snapshot.connection.since_s), Tone.MUTED),
        Span(f"  {'  '.join(counts)}", Tone.PLAIN),
        Span(f"  {formatting.per_second(snapshot.tokens_per_s):>5}", Tone.STRONG),
        Span(" tokens/s", Tone.MUTED),
    )
    second = _second_line(snapshot)
    is_wrong = any(span.tone is not Tone.MUTED for span in second)
    return [spread(left, right, width), *(wrap(second, width) if is_wrong else [cut(second, width)])]


def _count(snapshot: Snapshot, role: Role) -> str:
    of_role = [node for node in snapshot.nodes if node.role == role]
    up = sum(node.reachability is Reachability.UP for node in of_role)
    counted = formatting.counted(len(of_role), role.value)
    return counted if up == len(of_role) else f"{up}/{counted}"


def _second_line(snapshot: Snapshot) -> Line:
    """The worst that is known of the swarm, or its names."""
    connection = snapshot.connection
    if connection.state is ConnectionState.LOST:
        wait_s = None if connection.retry_at_s is None else connection.retry_at_s - snapshot.at_s
        when = "looking again" if wait_s is None else f"next try in {formatting.duration(wait_s)}"
        return (Span(f"✗ swarm lost, {when}: {connection.reason}", Tone.BAD),)
    if snapshot.problem:
        return (Span(f"! the list may be incomplete: {snapshot.problem}", Tone.WARNING),)
    parts = (snapshot.title, snapshot.target, snapshot.note)
    return (Span(" · ".join(filter(None, parts)), Tone.MUTED),)
