"""The two lines on top: how the monitor stands with the swarm, and what is in it."""

from typing import Final

from cosine_protocol.records import Role
from cosine_tui import figures
from cosine_tui.picture import LinkState, Picture, Reach
from cosine_tui.spans import Line, Span, Tone, cut, spread

_SIGNS: Final = {LinkState.JOINING: "…", LinkState.LIVE: "●", LinkState.LOST: "✗"}
_TONES: Final = {LinkState.JOINING: Tone.WARNING, LinkState.LIVE: Tone.GOOD, LinkState.LOST: Tone.BAD}


def headline(picture: Picture, width: int) -> list[Line]:
    state = picture.connection.state
    left = (Span("CoSine", Tone.STRONG),)
    right = (
        Span(f"{_SIGNS[state]} {state.value} ", _TONES[state]),
        Span(figures.duration(picture.at_s - picture.connection.since_s), Tone.MUTED),
        Span(f"  {_counts(picture)}", Tone.PLAIN),
        Span(f"  {figures.per_second(picture.tokens_per_s):>5}", Tone.STRONG),
        Span(" tokens/s", Tone.MUTED),
    )
    return [spread(left, right, width), cut(_second(picture), width)]


def _counts(picture: Picture) -> str:
    return "  ".join(
        (
            _count(picture, Role.VERIFIER),
            _count(picture, Role.DRAFTER),
            figures.counted(len(picture.running), "request"),
        )
    )


def _count(picture: Picture, role: Role) -> str:
    of_role = [node for node in picture.nodes if node.role == role]
    up = sum(node.reach is Reach.UP for node in of_role)
    counted = figures.counted(len(of_role), role.value)
    return counted if up == len(of_role) else f"{up}/{counted}"


def _second(picture: Picture) -> Line:
    connection = picture.connection
    if connection.state is LinkState.LOST:
        wait_s = None if connection.retry_at_s is None else connection.retry_at_s - picture.at_s
        when = "looking again" if wait_s is None else f"next try in {figures.duration(wait_s)}"
        return (Span(f"✗ swarm lost, {when}: {connection.reason}", Tone.BAD),)
    if picture.problem:
        return (Span(f"! the list may be incomplete: {picture.problem}", Tone.WARNING),)
    parts = (picture.title, picture.target, picture.note)
    return (Span(" · ".join(filter(None, parts)), Tone.MUTED),)
