"""The list of the swarm: verifiers, drafters and stages, their speed, load and state, and who is banned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.learning.home import LearnedName
from cosine_protocol.records import NodeRecord, Role
from cosine_tui import formatting
from cosine_tui.listing import ALL, Listing
from cosine_tui.snapshot import ConnectionState, NodeView, Reachability, Snapshot
from cosine_tui.styled_text import BLANK, Line, ListRow, Span, Tone, author_mark, author_tone, cut, fit, wrap

MAX_ROWS: Final = 500
"""Bounds the time of a redraw in a large swarm."""
MAX_BANS_SHOWN: Final = 8
"""A choice: more would push the nodes off the screen."""
# Widths of the columns in cells, and the widths of the pane from which on there is room for further columns.
_MARK: Final = 3
_NAME: Final = 8
_DOMAIN: Final = 11
_PASS: Final = 8
_LOAD: Final = 7
_PERCENT: Final = 5
_WITH_RTT: Final = 54
_WITH_MODEL: Final = 74
_WITH_RATES: Final = 96
_MIN_REASON: Final = 16
"""Cells that a reason gets at least, however narrow the pane."""


@dataclass(frozen=True, slots=True)
class _NodeWidths:
    """Widths in cells of the columns that depend on the pane's; 0 where there is no room."""

    state: int
    model: int
    load_bar: int
    rtt: int
    passes: int
    share_bar: int

    @classmethod
    def of(cls, width: int) -> "_NodeWidths":
        fixed = _MARK + _NAME + _DOMAIN + _PASS + _LOAD + _PERCENT
        if width < _WITH_MODEL:
            return cls(state=2, model=0, load_bar=0, rtt=8 if width >= _WITH_RTT else 0, passes=0, share_bar=0)
        extra = (6, 10) if width >= _WITH_RATES else (0, 0)
        model = width - fixed - 6 - 8 - 9 - sum(extra)
        return cls(state=6, model=max(6, min(40, model)), load_bar=extra[0], rtt=8, passes=extra[1], share_bar=9)

    @property
    def before_figures(self) -> int:
        """Cells before the figures of a node."""
        return self.state + _MARK + _DOMAIN + _NAME


def swarm_rows(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[ListRow]:
    """The table of the nodes that fit `listing`, cut to `width` cells and `MAX_ROWS` nodes of a role."""
    if not snapshot.nodes:
        return [ListRow(line) for line in wrap([Span(_nobody(snapshot), Tone.MUTED)], width)]
    widths = _NodeWidths.of(width)
    rows: list[ListRow] = []
    for role, plural in ((Role.VERIFIER, "VERIFIERS"), (Role.DRAFTER, "DRAFTERS"), (Role.STAGE, "STAGES")):
        of_role = [node for node in snapshot.nodes if node.role == role]
        # Most swarms have none: their models are served whole.
        if role is Role.STAGE and not of_role:
            continue
        nodes = listing.nodes(of_role)
        count = f"{len(of_role):,}" if len(nodes) == len(of_role) else f"{len(nodes):,} of {len(of_role):,}"
        rows += [ListRow(BLANK)] if rows else []
        rows.append(ListRow(_heading(f"{plural} {count}", widths, role)))
        for node in nodes[:MAX_ROWS]:
            rows += _node(node, widths, width, snapshot.at_s)
        if not of_role:
            rows.append(ListRow((Span(f"no {role.value} is announced", Tone.WARNING),)))
        if len(nodes) > MAX_ROWS:
            rows.append(ListRow((Span(f"and {len(nodes) - MAX_ROWS:,} more; /filter finds them", Tone.MUTED),)))
    rows += [ListRow(line) for line in _banned(snapshot, width)]
    rows += [ListRow(line) for line in _legend(snapshot.nodes)]
    return [ListRow(cut(row.line, width), row.key) for row in rows]


def _nobody(snapshot: Snapshot) -> str:
    connection = snapshot.connection
    if connection.state is ConnectionState.JOINING:
        return "Joining the network ..."
    if connection.state is ConnectionState.LOST:
        return f"The network could not be joined yet. {connection.reason}"
    return f"No node of {snapshot.target} is announced in this network yet."


def _heading(title: str, widths: _NodeWidths, role: Role) -> Line:
    of_text = _right("of the text" if widths.share_bar else "text", widths.share_bar + _PERCENT)
    columns = (
        fit("model", widths.model),
        _right("a pass", _PASS),
        _right("busy" if role is Role.STAGE else "load", _LOAD) + " " * widths.load_bar,
        _right("RTT", widths.rtt),
        _right("passes/s", widths.passes),
        of_text if role is Role.DRAFTER else "",
    )
    name = fit(title, widths.before_figures)
    return (Span(name, Tone.HEADING), *(Span(column, Tone.MUTED) for column in columns))


def _node(node: NodeView, widths: _NodeWidths, width: int, now_s: float) -> Iterator[ListRow]:
    """The row of a node; the reason why one is unreachable goes on below it."""
    is_up = node.reachability is Reachability.UP
    tone = author_tone(node.author) if is_up else Tone.MUTED
    # What a verifier computes in matters: a request fails over only to equal numerics.
    what = "+".join(node.record.expertise) if node.author else node.record.numerics
    if node.record.stage is not None:
        what = str(node.record.stage.held)
    state = "● up" if is_up else "✗ lost"
    name = formatting.short_name(node.peer_id)
    head = (
        Span(fit(state if widths.share_bar else state[0], widths.state), Tone.GOOD if is_up else Tone.BAD),
        Span(f" {author_mark(node.author)} ", tone),
        Span(fit(what, _DOMAIN - 1) + " ", tone if node.author else Tone.MUTED),
        Span(fit(name, _NAME - 1) + " ", Tone.PLAIN if is_up else Tone.MUTED),
    )
    if is_up:
        yield ListRow((*head, *_figures(node, widths)), node.peer_id)
        return
    reason = f"unreachable for {formatting.duration(now_s - node.since_s)}: {node.reason}"
    first, *rest = wrap([Span(reason, Tone.BAD)], max(_MIN_REASON, width - widths.before_figures))
    yield ListRow((*head, *first), node.peer_id)
    for line in rest:
        yield ListRow((Span(" " * widths.before_figures), *line))


def _figures(node: NodeView, widths: _NodeWidths) -> Iterator[Span]:
    yield Span(fit(_model(node.record), widths.model), Tone.MUTED)
    emulated = "~" if node.record.emulated else ""
    yield Span(_right(emulated + formatting.milliseconds(node.pass_ms), _PASS))
    is_full = node.load >= node.capacity
    load = f"{node.load}/{node.capacity}" + ("!" if is_full else "")
    share = node.load / node.capacity if node.capacity else 1.0
    if node.record.stage is not None:
        # Of its passes' time; any number of chains may cause it.
        share = node.record.stage.busy_permille / 1000
        is_full, load = share >= 1.0, formatting.percent(share)
    yield Span(_right(load, _LOAD), Tone.WARNING if is_full else Tone.PLAIN)
    if widths.load_bar:
        yield Span(" " + formatting.bar(share, widths.load_bar - 1), Tone.MUTED)
    yield Span(_right(formatting.milliseconds(node.rtt_ms), widths.rtt))
    if widths.passes:
        rate = formatting.NONE if node.passes_per_s is None else formatting.per_second(node.passes_per_s)
        yield Span(_right(rate, widths.passes))
    share_of_text = node.standing.text_share
    if node.author and share_of_text is not None:
        if widths.share_bar:
            yield Span("  " + formatting.bar(share_of_text, widths.share_bar - 2), author_tone(node.author))
        yield Span(_right(formatting.percent(share_of_text), _PERCENT))


def _model(record: NodeRecord) -> str:
    """The model, and the version that it says it has learned, before what is cut where there is little room."""
    learned = LearnedName.of(record.model)
    return record.model if learned is None else f"v{learned.number} {learned.model}"


def _banned(snapshot: Snapshot, width: int) -> Iterator[Line]:
    """The peers that nodes and clients of this user do not talk to, how long yet, and why."""
    if not snapshot.bans:
        return
    now_s = (snapshot.began_unix_s or 0.0) + snapshot.at_s
    yield BLANK
    yield (Span(f"BANNED HERE {len(snapshot.bans):,}", Tone.HEADING),)
    for ban in snapshot.bans[-MAX_BANS_SHOWN:]:
        what = (
            f"✗ {formatting.short_name(ban.peer_id)} for {formatting.duration(ban.until_s - now_s)} yet: {ban.why}"
        )
        yield from wrap([Span(what, Tone.BAD)], width)
    if len(snapshot.bans) > MAX_BANS_SHOWN:
        yield (Span("`cosine-node ban` shows all", Tone.MUTED),)


def _legend(nodes: Sequence[NodeView]) -> Iterator[Line]:
    profiles = sorted({node.record.emulated for node in nodes if node.record.emulated})
    if profiles:
        yield BLANK
        yield (Span(f"~ emulated speed, profile {', '.join(profiles)}", Tone.MUTED),)


def _right(text: str, width: int) -> str:
    return fit(text, width, "right")
