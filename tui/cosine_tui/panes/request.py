"""A request: the pane with its growing text, and the page with all its details."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cosine_p2p.request.origins import told_origins
from cosine_p2p.request.results import Generation
from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import Tone, author_mark, author_tone, beside, clean_text, cut, fit, flow, toned
from cosine_tui.panes.requests import NOTHING_ASKED, STATE_TONES
from cosine_tui.state.snapshot import RequestState, RequestView, Snapshot, Speeds, TextRun

PLOT_FROM_HEIGHT: Final = 30  # Rows of the pane with enough room for a plot of the speed.
PLAIN_LINE: Final = "╌"  # The level of plain decoding where it is not covered by a bar.
_SUPERSCRIPTS: Final = str.maketrans("abcdefghijklmnoprstuvwxyz=", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ⁼")


def request_title(request: RequestView | None) -> str:
    if request is None:
        return "Request"
    about = "yours" if request.is_own else ""
    return " · ".join(filter(None, (f"Request {request.number}", about, request.label)))


def _ended(done: Generation) -> str:
    if done.finish_reason == "length":
        return " at the length limit"
    return " at its end" if done.stop_text is None else " at a stop string"


def request_pane(
    snapshot: Snapshot, request: RequestView | None, width: int, *, has_marks: bool = False, height: int = 0
) -> tuple[RenderableType, RenderableType | None]:
    """Return a request, and the part below a growing text. Marks are drafters' letters; a plot needs `height`."""
    if request is None:
        return toned(NOTHING_ASKED, Tone.MUTED), None
    head = _head(snapshot, request, width, plot_rows=5 if height >= PLOT_FROM_HEIGHT else 0)
    above = Group(*head, Text(), *_text(request, has_marks=has_marks))
    below: RenderableType = Text()
    if request.why:
        named = [reason.partition(": ") if ": " in reason else ("", "", reason) for reason in reversed(request.why)]
        reasons = beside((toned(author), toned(reason, Tone.MUTED)) for author, _, reason in named)
        heading = Text.assemble(
            toned("WHY", Tone.HEADING), toned("  decisions about drafters, the latest first", Tone.MUTED)
        )
        below = Group(Text(), heading, reasons)
    is_growing = request.state is RequestState.WRITING and bool(request.text)
    return (above, below) if is_growing else (Group(above, below), None)


def request_page(snapshot: Snapshot, number: int, width: int, *, has_marks: bool = False) -> RenderableType:
    request = snapshot.request(number)
    if request is None:
        return toned(f"Request {number} is no longer kept.", Tone.WARNING)
    moments = [
        (
            fit(f"{moment.at_s:.2f} s", 9, Tone.MUTED, "right"),
            toned(moment.text, Tone.WARNING if moment.is_alert else Tone.PLAIN),
        )
        for moment in request.timeline
    ]
    return Group(
        *_head(snapshot, request, width, plot_rows=8),
        Text(),
        toned("TEXT", Tone.HEADING),
        *(list(_text(request, has_marks=has_marks)) or [toned("Nothing is written yet.", Tone.MUTED)]),
        Text(),
        toned("TIMELINE", Tone.HEADING),
        beside(moments),
        Text(),
        toned("ACCOUNTS", Tone.HEADING),
        *_drafters(request),
        beside((toned(name, Tone.MUTED), toned(value)) for name, value in _accounts(request)),
    )


def _head(snapshot: Snapshot, request: RequestView, width: int, *, plot_rows: int) -> Iterator[RenderableType]:
    """State, prompt, figures, speed and authors; the speed is a plot where that has rows."""
    state = request.state
    done = request.account if state is RequestState.FINISHED else None
    ended = _ended(done) if done is not None else ""
    seed = "" if request.seed is None else f"seed {request.seed}"
    facts = filter(None, (request.strategy, _served(snapshot, request), seed))
    stated = toned(f"{state.sign} {state.word}{ended}", STATE_TONES[state])
    yield flow([stated, *(toned(fact, Tone.MUTED) for fact in facts)], width)
    # Three lines are enough to recognise a prompt.
    prompt = toned(f"> {request.prompt[: 3 * width]}", Tone.MUTED)
    yield cut(prompt, 3 * width - 6)
    yield Text()
    figures = (
        (formatting.per_second(request.tokens_per_s), "tokens/s"),
        (f"{request.tokens:,}", "tokens"),
        (f"{request.rounds:,}", "passes"),
        (f"{request.seconds:.1f} s", "in all" if state.is_over else "so far"),
        (formatting.NONE if request.first_s is None else f"{request.first_s:.2f} s", "to the first"),
    )
    shown = [Text.assemble(toned(value, Tone.STRONG), toned(f" {unit}", Tone.MUTED)) for value, unit in figures]
    gain = toned(gain_over_plain(request), Tone.MUTED)
    yield flow([*shown, gain] if gain and plot_rows else shown, width, gap=3)
    yield _passes(request, width)
    if plot_rows:
        yield from speed_plot(request.speeds, request.plain_per_s, width, plot_rows)
    elif request.speeds.per_s:
        heading = toned("speed  ", Tone.MUTED)
        room = max(8, width - heading.cell_len - 2 - gain.cell_len)
        values = resampled(request.speeds.per_s, room)
        bars = formatting.bars_in_row(values, top=max(*values, 1e-9), row=0, rows=1)
        yield Text.assemble(heading, toned(bars.replace(" ", formatting.GAP), Tone.ACCENT), "  ", gain)
    yield Columns(list(_authors(request)), padding=(0, 2))


def _served(snapshot: Snapshot, request: RequestView) -> str:
    if not request.verifiers:
        return "no verifier yet"
    names = []
    for peer_id in request.verifiers:
        node = snapshot.node(peer_id)
        rtt = f" at {formatting.milliseconds(node.rtt_ms)}" if node and node.rtt_ms else ""
        names.append(formatting.short_name(peer_id) + rtt)
    return f"verifier {', '.join(names)}"


def _passes(request: RequestView, width: int) -> Text:
    is_narrow = width < 60
    heading = toned("passes " if is_narrow else "accepted in each pass  ", Tone.MUTED)
    mean = request.tokens / request.rounds if request.rounds else 0.0
    most = "" if is_narrow else f"at most {max(request.passes, default=0)}, "
    tail = toned(f"  {most}{mean:.1f} tokens a pass", Tone.MUTED)
    spark = formatting.sparkline(request.passes, max(8, width - heading.cell_len - tail.cell_len))
    return Text.assemble(heading, toned(spark, Tone.ACCENT), tail)


def _authors(request: RequestView) -> Iterator[Text]:
    if not request.tokens:
        return
    for origin in request.origins:
        name = origin.name if origin.is_own else f"{origin.name} {formatting.short_name(origin.source)}"
        tone = author_tone(origin.author, is_copied=origin.is_verifier_draft)
        share = origin.tokens / request.tokens
        yield Text.assemble(
            fit(f"{author_mark(origin.author, is_copied=origin.is_verifier_draft)} {name}", 20, tone),
            fit(f"{origin.tokens}", 4, Tone.STRONG, "right"),
            toned(" " + formatting.bar(share, 5), tone),
            fit(formatting.percent(share), 6, Tone.MUTED, "right"),
        )


def _text(request: RequestView, *, has_marks: bool) -> Iterator[Text]:
    if request.text:
        yield Text.assemble(*(_written(run, has_marks=has_marks) for run in request.text))
    if request.error:
        yield toned(f"✗ {request.error}", Tone.BAD)


def _written(run: TextRun, *, has_marks: bool) -> Text:
    text = clean_text(run.text).replace("\t", "    ")
    if has_marks and (run.author or run.is_copied):
        mark = author_mark(run.author, is_copied=run.is_copied).translate(_SUPERSCRIPTS)
        blanks = len(text) - len(text.lstrip(" \n"))
        text = text[:blanks] + mark + text[blanks:]
    return Text(text, author_tone(run.author, is_copied=run.is_copied))


def _drafters(request: RequestView) -> Iterator[Table]:
    if not request.drafters:
        return
    table = Table("drafter", box=None, pad_edge=False, header_style=Tone.MUTED)
    for name in ("drafted", "right", "of those", "RTT"):
        table.add_column(name, justify="right", min_width=9)
    for drafter in sorted(request.drafters, key=lambda drafter: -drafter.accepted):
        name = f"{author_mark(drafter.author)} {drafter.domain} {formatting.short_name(drafter.peer_id)}"
        figures = (
            f"{drafter.drafted:,}",
            f"{drafter.accepted:,}",
            formatting.percent(drafter.accepted / drafter.drafted if drafter.drafted else None),
            formatting.milliseconds(drafter.rtt_ms),
        )
        table.add_row(toned(name, author_tone(drafter.author)), *(toned(figure) for figure in figures))
    yield table


def _accounts(request: RequestView) -> Iterator[tuple[str, str]]:
    account = request.account
    if account is None:
        known = "The figures of the whole follow when the request is over."
        yield "", known if not request.state.is_over else "It never began at a verifier."
        return
    for report in account.swarm.verifiers:
        committed = formatting.counted(report.tokens, "token")
        yield f"verifier {formatting.short_name(report.peer_id)}", f"committed {committed}"
    yield "prompt", formatting.counted(account.usage.prompt_tokens, "token")
    yield "drafted", f"{formatting.counted(account.swarm.drafted, 'token')} in trees"
    hits = formatting.percent(account.swarm.accepted / account.swarm.offered if account.swarm.offered else None)
    offered = formatting.counted(account.swarm.offered, "token")
    yield "guessed", f"{offered} of the text in time, {account.swarm.accepted:,} of them right ({hits})"
    yield "by origin", told_origins(request.origins)
    yield "near ties", f"{account.swarm.near_ties:,}"
    sent, received = (
        formatting.file_size(account.swarm.bytes_sent),
        formatting.file_size(account.swarm.bytes_received),
    )
    yield "traffic", f"{sent} sent, {received} received"


def gain_over_plain(request: RequestView) -> str:
    """Format as `1.9 times plain (16.1)`, or "" if unknown."""
    plain = request.plain_per_s
    if plain is None or not request.tokens_per_s:
        return ""
    bound = "" if request.is_plain_measured else "at most "
    return f"{bound}{request.tokens_per_s / plain:.1f} times plain ({formatting.per_second(plain)})"


def speed_plot(speeds: Speeds, plain: float | None, width: int, rows: int) -> list[Text]:
    """Draw `rows` rows of bars with a scale, a line at plain decoding and the time; [] without room."""
    scale_width = 6
    columns = width - scale_width
    if columns < 8 or not speeds.per_s:
        return []
    values = resampled(speeds.per_s, columns)
    top = max(*values, plain or 0.0, 1e-9)
    plain_row = None if plain is None else min(rows - 1, math.floor(plain / top * rows))
    lines = []
    for row in reversed(range(rows)):
        scale = formatting.per_second(top) if row == rows - 1 else ""
        bars = formatting.bars_in_row(values, top=top, row=row, rows=rows)
        if plain is not None and row == plain_row:
            scale, bars = formatting.per_second(plain), bars.replace(" ", PLAIN_LINE)
        drawn = toned(bars, Tone.ACCENT)
        drawn.highlight_regex(f"{PLAIN_LINE}+", style=Tone.MUTED)
        lines.append(Text.assemble(fit(scale, scale_width - 1, Tone.MUTED, "right"), " ", drawn))
    legend = f"0 s  tokens/s over time{'' if plain is None else f', {PLAIN_LINE} plain'}"
    seconds = formatting.duration(speeds.interval_s * len(speeds.per_s))
    gap = " " * max(1, columns - len(legend) - len(seconds))
    return [*lines, toned(" " * scale_width + legend + gap + seconds, Tone.MUTED)]


def resampled(values: Sequence[float], columns: int) -> list[float]:
    """Return the mean of neighbours, or a repeated value, for each column."""
    means = []
    for column in range(columns):
        first = column * len(values) // columns
        part = values[first : max(first + 1, (column + 1) * len(values) // columns)]
        means.append(sum(part) / len(part))
    return means
