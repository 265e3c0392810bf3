"""The headline: the state of the monitor's connection, and the counts of nodes and requests."""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from cosine_protocol.records import Role
from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import Tone, cut, spread, toned
from cosine_tui.state.snapshot import ConnectionState, Snapshot

_SIGNS: Final = {
    ConnectionState.JOINING: ("…", Tone.WARNING),
    ConnectionState.LIVE: ("●", Tone.GOOD),
    ConnectionState.LOST: ("✗", Tone.BAD),
}
"""The sign and the tone of each state of the connection."""


def headline(snapshot: Snapshot, width: int) -> RenderableType:
    """Return two lines of `width` cells, or more if the second describes a problem."""
    connection = snapshot.connection
    sign, tone = _SIGNS[connection.state]
    counts = [formatting.counted(len(snapshot.running), "request")]
    for role in (Role.DRAFTER, Role.VERIFIER):
        of_role = [node for node in snapshot.nodes if node.role == role]
        up = sum(node.is_up for node in of_role)
        counts.insert(0, (f"{up}/" if up < len(of_role) else "") + formatting.counted(len(of_role), role.value))
    right = Text.assemble(
        toned(f"{sign} {connection.state.value} ", tone),
        toned(formatting.duration(snapshot.at_s - connection.since_s), Tone.MUTED),
        toned(f"  {'  '.join(counts)}"),
        toned(f"  {formatting.per_second(snapshot.tokens_per_s):>5}", Tone.STRONG),
        toned(" tokens/s", Tone.MUTED),
    )
    return Group(spread(toned("CoSine", Tone.STRONG), right, width), _second_line(snapshot, width))


def _second_line(snapshot: Snapshot, width: int) -> Text:
    """Return the most serious problem of the swarm in full, or its names."""
    connection = snapshot.connection
    if connection.state is ConnectionState.LOST:
        wait_s = None if connection.retry_at_s is None else connection.retry_at_s - snapshot.at_s
        when = "looking again" if wait_s is None else f"next try in {formatting.duration(wait_s)}"
        return toned(f"✗ swarm lost, {when}: {connection.reason}", Tone.BAD)
    if snapshot.problem:
        return toned(f"! the list may be incomplete: {snapshot.problem}", Tone.WARNING)
    names = " · ".join(filter(None, (snapshot.title, snapshot.target, snapshot.note)))
    return cut(toned(names, Tone.MUTED), width)
