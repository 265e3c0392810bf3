"""The list of the swarm: verifiers, drafters and stages with speed, load and state, and the banned peers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from cosine_protocol.records import Role
from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import ListRow, Tone, author_mark, author_tone, cut, fit, toned, wrap
from cosine_tui.state.snapshot import ConnectionState, NodeView, Snapshot
from cosine_tui.state.view import ALL, Listing

MAX_ROWS: Final = 500  # Maximum number of nodes of a role, which bounds the time of a redraw.
MAX_BANS_SHOWN: Final = 8  # More would push the nodes off the screen.


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths of the columns in cells; 0 for a column without room."""

    state: int = 2
    mark: int = 3
    domain: int = 11
    name: int = 8
    model: int = 0
    a_pass: int = 8
    load: int = 7
    load_bar: int = 0
    rtt: int = 0
    passes: int = 0
    share_bar: int = 0
    share: int = 5

    @classmethod
    def of(cls, width: int) -> "_Columns":
        if width < 54:
            return cls()
        if width < 74:
            return cls(rtt=8)
        load_bar, passes = (6, 10) if width >= 96 else (0, 0)
        model = max(6, min(40, width - 65 - load_bar - passes))
        return cls(state=6, model=model, load_bar=load_bar, rtt=8, passes=passes, share_bar=9)

    @property
    def before_figures(self) -> int:
        return self.state + self.mark + self.domain + self.name


def swarm_rows(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[ListRow]:
    """Return the table of the nodes that match `listing`, cut to `width` cells and `MAX_ROWS` nodes of a role."""
    if not snapshot.nodes:
        return [ListRow(line) for line in wrap(toned(_nobody(snapshot), Tone.MUTED), width)]
    columns = _Columns.of(width)
    rows: list[ListRow] = []
    for role in (Role.VERIFIER, Role.DRAFTER, Role.STAGE):
        of_role = [node for node in snapshot.nodes if node.role == role]
        # Most swarms have no stages, since their models are served whole.
        if role is Role.STAGE and not of_role:
            continue
        nodes = listing.nodes(of_role)
        count = f"{len(of_role):,}" if len(nodes) == len(of_role) else f"{len(nodes):,} of {len(of_role):,}"
        rows += [ListRow(Text())] if rows else []
        rows.append(ListRow(_heading(f"{role.upper()}S {count}", columns, role)))
        for node in nodes[:MAX_ROWS]:
            rows += _node(node, columns, width, snapshot.at_s)
        if not of_role:
            rows.append(ListRow(toned(f"no {role.value} is announced", Tone.WARNING)))
        if len(nodes) > MAX_ROWS:
            rows.append(ListRow(toned(f"and {len(nodes) - MAX_ROWS:,} more; /filter finds them", Tone.MUTED)))
    rows += [ListRow(line) for line in _banned(snapshot, width)]
    if profiles := sorted({node.record.emulated for node in snapshot.nodes if node.record.emulated}):
        note = toned(f"~ emulated speed, profile {', '.join(profiles)}", Tone.MUTED)
        rows += [ListRow(Text()), ListRow(note)]
    for row in rows:
        cut(row.line, width)
    return rows


def _nobody(snapshot: Snapshot) -> str:
    connection = snapshot.connection
    if connection.state is ConnectionState.JOINING:
        return "Joining the network ..."
    if connection.state is ConnectionState.LOST:
        return f"The network could not be joined yet. {connection.reason}"
    return f"No node of {snapshot.target} is announced in this network yet."


def _heading(title: str, columns: _Columns, role: Role) -> Text:
    share = "of the text" if columns.share_bar else "text"
    return Text.assemble(
        fit(title, columns.before_figures, Tone.HEADING),
        fit("model", columns.model, Tone.MUTED),
        fit("a pass", columns.a_pass, Tone.MUTED, "right"),
        fit("busy" if role is Role.STAGE else "load", columns.load, Tone.MUTED, "right"),
        " " * columns.load_bar,
        fit("RTT", columns.rtt, Tone.MUTED, "right"),
        fit("passes/s", columns.passes, Tone.MUTED, "right"),
        fit(share if role is Role.DRAFTER else "", columns.share_bar + columns.share, Tone.MUTED, "right"),
    )


def _node(node: NodeView, columns: _Columns, width: int, now_s: float) -> Iterator[ListRow]:
    """Yield the row of a node, and below it the reason why it is unreachable."""
    is_up = node.is_up
    tone = author_tone(node.author) if is_up else Tone.MUTED
    # A request fails over only to verifiers with equal numerics.
    what = "+".join(node.record.expertise) if node.author else node.record.numerics
    if node.record.stage is not None:
        what = str(node.record.stage.held)
    state = "● up" if is_up else "✗ lost"
    head = Text.assemble(
        fit(state if columns.share_bar else state[0], columns.state, Tone.GOOD if is_up else Tone.BAD),
        fit(f" {author_mark(node.author)} ", columns.mark, tone),
        fit(what, columns.domain - 1, tone if node.author else Tone.MUTED),
        " ",
        fit(formatting.short_name(node.peer_id), columns.name, Tone.PLAIN if is_up else Tone.MUTED),
    )
    if is_up:
        yield ListRow(Text.assemble(head, *_figures(node, columns)), node.peer_id)
        return
    reason = f"unreachable for {formatting.duration(now_s - node.since_s)}: {node.reason}"
    # A reason is legible in any pane.
    first, *rest = wrap(toned(reason, Tone.BAD), max(16, width - columns.before_figures))
    yield ListRow(Text.assemble(head, first), node.peer_id)
    for line in rest:
        yield ListRow(Text.assemble(" " * columns.before_figures, line))


def _figures(node: NodeView, columns: _Columns) -> Iterator[Text]:
    yield fit(node.record.model, columns.model, Tone.MUTED)
    emulated = "~" if node.record.emulated else ""
    yield fit(emulated + formatting.milliseconds(node.pass_ms), columns.a_pass, align="right")
    is_full = node.load >= node.capacity
    load = f"{node.load}/{node.capacity}" + ("!" if is_full else "")
    busy = node.load / node.capacity if node.capacity else 1.0
    if node.record.stage is not None:
        # The share of time that its passes take, for any number of chains.
        busy = node.record.stage.busy_permille / 1000
        is_full, load = busy >= 1.0, formatting.percent(busy)
    yield fit(load, columns.load, Tone.WARNING if is_full else Tone.PLAIN, "right")
    if columns.load_bar:
        yield toned(" " + formatting.bar(busy, columns.load_bar - 1), Tone.MUTED)
    yield fit(formatting.milliseconds(node.rtt_ms), columns.rtt, align="right")
    rate = formatting.NONE if node.passes_per_s is None else formatting.per_second(node.passes_per_s)
    yield fit(rate, columns.passes, align="right")
    share = node.tally.text_share
    if node.author and share is not None:
        if columns.share_bar:
            yield toned("  " + formatting.bar(share, columns.share_bar - 2), author_tone(node.author))
        yield fit(formatting.percent(share), columns.share, align="right")


def _banned(snapshot: Snapshot, width: int) -> Iterator[Text]:
    if not snapshot.bans:
        return
    now_s = (snapshot.began_unix_s or 0.0) + snapshot.at_s
    yield Text()
    yield toned(f"BANNED HERE {len(snapshot.bans):,}", Tone.HEADING)
    for ban in snapshot.bans[-MAX_BANS_SHOWN:]:
        left = formatting.duration(ban.until_s - now_s)
        yield from wrap(toned(f"✗ {formatting.short_name(ban.peer_id)} for {left} yet: {ban.why}", Tone.BAD), width)
    if len(snapshot.bans) > MAX_BANS_SHOWN:
        yield toned("`cosine-node ban` shows all", Tone.MUTED)
