"""The pane of the swarm: a table of verifiers and drafters, their speed, load and state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_protocol.records import Role
from cosine_tui import formatting
from cosine_tui.snapshot import ConnectionState, NodeView, Reachability, Snapshot
from cosine_tui.styled_text import BLANK, Line, Span, Tone, author_mark, author_tone, cut, fit, wrap

MAX_ROWS: Final = 500
"""Bounds the time of a redraw in a large swarm."""
# Widths of the columns in cells.
_STATE: Final = 6
_NAME: Final = 8
_DOMAIN: Final = 11
_PASS: Final = 8
_LOAD: Final = 7
_LOAD_BAR: Final = 6
_RTT: Final = 8
_PASSES: Final = 10
_SHARE: Final = 7
_SHARE_BAR: Final = 7
_WIDE: Final = 96
"""From this width on there is room for load bars and passes a second."""


@dataclass(frozen=True, slots=True)
class _Widths:
    """Widths in cells; `model` takes what is left, `passes` and `load_bar` are 0 where there is no room."""

    model: int
    load_bar: int
    passes: int

    @classmethod
    def of(cls, width: int) -> "_Widths":
        extra = (_LOAD_BAR, _PASSES) if width >= _WIDE else (0, 0)
        fixed = _STATE + _NAME + _DOMAIN + _PASS + _LOAD + _RTT + _SHARE + _SHARE_BAR + sum(extra) + 3
        return cls(model=max(6, min(40, width - fixed)), load_bar=extra[0], passes=extra[1])


def swarm_lines(snapshot: Snapshot, width: int, *, has_details: bool = False) -> list[Line]:
    """The table of all nodes, cut to `width` cells and `MAX_ROWS` rows; details are a line more for each."""
    if not snapshot.nodes:
        return wrap([Span(_nobody(snapshot), Tone.MUTED)], width)
    widths = _Widths.of(width)
    lines: list[Line] = []
    for role, plural in ((Role.VERIFIER, "VERIFIERS"), (Role.DRAFTER, "DRAFTERS")):
        nodes = [node for node in snapshot.nodes if node.role == role]
        lines += [BLANK] if lines else []
        lines.append(_heading(f"{plural} {len(nodes):,}", widths, is_drafter=role is Role.DRAFTER))
        for node in nodes[:MAX_ROWS]:
            lines.append(tuple(_row(node, widths, snapshot.at_s)))
            if has_details:
                lines.append(_details(node))
        if not nodes:
            lines.append((Span(f"no {role.value} is announced", Tone.WARNING),))
        if len(nodes) > MAX_ROWS:
            lines.append((Span(f"and {len(nodes) - MAX_ROWS:,} more", Tone.MUTED),))
    return [cut(line, width) for line in (*lines, *_legend(snapshot.nodes))]


def _nobody(snapshot: Snapshot) -> str:
    connection = snapshot.connection
    if connection.state is ConnectionState.JOINING:
        return "Joining the network ..."
    if connection.state is ConnectionState.LOST:
        return f"The network could not be joined yet. {connection.reason}"
    return f"No node of {snapshot.target} is announced in this network yet."


def _heading(title: str, widths: _Widths, *, is_drafter: bool) -> Line:
    columns = (
        fit("model", widths.model),
        _right("a pass", _PASS),
        _right("load", _LOAD) + " " * widths.load_bar,
        _right("RTT", _RTT),
        _right("passes/s", widths.passes),
        "  of the text" if is_drafter else "",
    )
    name = fit(title, _STATE + 3 + _DOMAIN + _NAME)
    return (Span(name, Tone.HEADING), *(Span(column, Tone.MUTED) for column in columns))


def _row(node: NodeView, widths: _Widths, now_s: float) -> Iterator[Span]:
    is_up = node.reachability is Reachability.UP
    yield Span("● up  " if is_up else "✗ lost", Tone.GOOD if is_up else Tone.BAD)
    tone = author_tone(node.author) if is_up else Tone.MUTED
    yield Span(f" {author_mark(node.author)} ", tone)
    # What a verifier computes in matters: a request fails over only to equal numerics.
    what = "+".join(node.domains) if node.author else node.numerics
    yield Span(fit(what, _DOMAIN - 1) + " ", tone if node.author else Tone.MUTED)
    yield Span(fit(formatting.short_name(node.peer_id), _NAME - 1) + " ", Tone.PLAIN if is_up else Tone.MUTED)
    if is_up:
        yield from _figures(node, widths)
        return
    yield Span(f"unreachable for {formatting.duration(now_s - node.since_s)}: {node.reason}", Tone.BAD)


def _figures(node: NodeView, widths: _Widths) -> Iterator[Span]:
    yield Span(fit(node.model, widths.model), Tone.MUTED)
    emulated = "~" if node.emulated else ""
    yield Span(_right(emulated + formatting.milliseconds(node.pass_ms), _PASS))
    is_full = node.load >= node.capacity
    load = f"{node.load}/{node.capacity}" + ("!" if is_full else "")
    yield Span(_right(load, _LOAD), Tone.WARNING if is_full else Tone.PLAIN)
    if widths.load_bar:
        share = node.load / node.capacity if node.capacity else 1.0
        yield Span(" " + formatting.bar(share, widths.load_bar - 1), Tone.MUTED)
    yield Span(_right(formatting.milliseconds(node.rtt_ms), _RTT))
    if widths.passes:
        rate = formatting.NONE if node.passes_per_s is None else formatting.per_second(node.passes_per_s)
        yield Span(_right(rate, widths.passes))
    if node.author and node.text_share is not None:
        yield Span("  " + formatting.bar(node.text_share, _SHARE_BAR), author_tone(node.author))
        yield Span(_right(formatting.percent(node.text_share), _SHARE - 2))


def _details(node: NodeView) -> Line:
    up = "" if node.uptime_s is None else f", up {formatting.duration(node.uptime_s)}"
    text = f"{node.peer_id}  {node.software}, {node.context_tokens:,} tokens of context{up}"
    return (Span(" " * _STATE + "   " + text, Tone.MUTED),)


def _legend(nodes: Sequence[NodeView]) -> Iterator[Line]:
    profiles = sorted({node.emulated for node in nodes if node.emulated})
    if profiles:
        yield BLANK
        yield (Span(f"~ emulated speed, profile {', '.join(profiles)}", Tone.MUTED),)


def _right(text: str, width: int) -> str:
    return fit(text, width, "right")
