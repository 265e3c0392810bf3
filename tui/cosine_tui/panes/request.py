"""The pane of a request: figures, the authors of its text, the text as it comes, the controller's reasons."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cosine_tui import formatting
from cosine_tui.panes.requests import STATE_TONES
from cosine_tui.panes.speed_plot import gain_over_plain, plain_per_s, speed_line, speed_plot
from cosine_tui.snapshot import RequestState, RequestView, Snapshot, TextRun
from cosine_tui.styled_text import (
    BLANK,
    Line,
    Span,
    Tone,
    author_mark,
    author_tone,
    cut,
    fit,
    pack,
    spread,
    wrap,
)

SHOWN_WHY: Final = 4
"""A choice: reasons shown however little room there is."""
PROMPT_CHARACTERS: Final = 2000
"""Bounds the time of a redraw: more characters than `PROMPT_LINES` hold."""
PROMPT_LINES: Final = 3
"""A choice: enough to recognise a prompt by."""
# Widths in cells: of a drafter's name before a reason, and of one author's part of the text.
_WHO: Final = 12
_CELL: Final = 38
NARROW: Final = 60
"""Cells below which words are shortened."""
PLOT_ROWS: Final = 5
"""A choice: rows of the plot of speed, enough to see a drafter come or go."""
PLOT_FROM_HEIGHT: Final = 30
"""A choice: from this height on a plot leaves enough room for the text."""
# Words and letters by finish reason and mark.
_FINISHED: Final = {"eos": " at its end", "length": " at the length limit", "stop": " at a stop string"}
_SUPERSCRIPTS: Final = str.maketrans("abcdefghijklmnoprstuvwxyz=", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ⁼")


@dataclass(frozen=True, slots=True)
class RequestPage:
    """The lines of a request. `end` is the line on which its text ends for now, None where nothing is written."""

    lines: tuple[Line, ...]
    end: int | None = None


def request_page(
    snapshot: Snapshot, request: RequestView | None, width: int, *, has_marks: bool = False, height: int = 0
) -> RequestPage:
    """A request on `width` cells; with `has_marks` every drafter's letter stands before its tokens.

    Where `height` leaves room there is a plot of the speed, and more reasons than the last few.
    """
    if request is None:
        nothing = "Nothing has been asked yet; type a prompt and press Enter."
        return RequestPage(tuple(wrap([Span(nothing, Tone.MUTED)], width)))
    plot_rows = PLOT_ROWS if height >= PLOT_FROM_HEIGHT else 0
    top = [*head_lines(snapshot, request, width, plot_rows=plot_rows), BLANK]
    text = text_lines(request, width, has_marks=has_marks)
    why = _why(request, width, room=height - len(top) - len(text)) if request.why else []
    is_writing = request.state is RequestState.WRITING
    end = len(top) + len(text) - 1 if is_writing and text else None
    return RequestPage(tuple(cut(line, width) for line in (*top, *text, *why)), end)


def request_title(request: RequestView | None) -> str:
    """The pane's title."""
    if request is None:
        return "Request"
    about = "yours" if request.is_own else ""
    return " · ".join(filter(None, (f"Request {request.number}", about, request.label)))


def head_lines(snapshot: Snapshot, request: RequestView, width: int, *, plot_rows: int) -> Iterator[Line]:
    """State, prompt, figures, speed and authors of a request; the speed is a plot where that has rows."""
    state = request.state
    reason = _FINISHED.get(request.finish_reason, "")
    seed = "" if request.seed is None else f"seed {request.seed}"
    facts = filter(None, (request.strategy, _served(snapshot, request), seed))
    stated = (Span(f"{state.sign} {state.word}{reason}", STATE_TONES[state]),)
    yield from pack([stated, *((Span(fact, Tone.MUTED),) for fact in facts)], width)
    for line in wrap([Span(request.prompt[:PROMPT_CHARACTERS], Tone.MUTED)], width - 2)[:PROMPT_LINES]:
        yield (Span("> ", Tone.MUTED), *line)
    yield BLANK
    gain = gain_over_plain(snapshot, request) if plot_rows else ""
    yield from pack([*_figures(request), *([(Span(gain, Tone.MUTED),)] if gain else [])], width, gap=3)
    yield _passes(request, width)
    if plot_rows:
        yield from speed_plot(request.speeds, plain_per_s(snapshot, request), width, plot_rows)
    elif request.speeds.per_s:
        yield speed_line(snapshot, request, width)
    yield from _legend(request, width)


def text_lines(request: RequestView, width: int, *, has_marks: bool) -> list[Line]:
    """The text so far, and the error that ended it."""
    lines = wrap([_text_span(run, has_marks=has_marks) for run in request.text], width) if request.text else []
    return lines + (wrap([Span(f"✗ {request.error}", Tone.BAD)], width) if request.error else [])


def _served(snapshot: Snapshot, request: RequestView) -> str:
    if not request.verifiers:
        return "no verifier yet"
    nodes = [snapshot.node(peer_id) for peer_id in request.verifiers]
    names = [formatting.short_name(peer_id) for peer_id in request.verifiers]
    rtts = [f" at {formatting.milliseconds(node.rtt_ms)}" if node and node.rtt_ms else "" for node in nodes]
    return "verifier " + ", ".join(name + rtt for name, rtt in zip(names, rtts, strict=True))


def _figures(request: RequestView) -> list[Line]:
    first = formatting.NONE if request.first_s is None else f"{request.first_s:.2f} s"
    parts = (
        (formatting.per_second(request.tokens_per_s), "tokens/s"),
        (f"{request.tokens:,}", "tokens"),
        (f"{request.rounds:,}", "passes"),
        (f"{request.seconds:.1f} s", "so far" if not request.state.is_over else "in all"),
        (first, "to the first"),
    )
    return [(Span(value, Tone.STRONG), Span(f" {unit}", Tone.MUTED)) for value, unit in parts]


def _passes(request: RequestView, width: int) -> Line:
    heading = "passes " if width < NARROW else "accepted in each pass  "
    mean = request.tokens / request.rounds if request.rounds else 0.0
    most = max(request.passes, default=0)
    tail = f"  {mean:.1f} tokens a pass" if width < NARROW else f"  at most {most}, {mean:.1f} tokens a pass"
    spark = formatting.sparkline(request.passes, max(8, width - len(heading) - len(tail)))
    return (Span(heading, Tone.MUTED), Span(spark, Tone.ACCENT), Span(tail, Tone.MUTED))


def _legend(request: RequestView, width: int) -> Iterator[Line]:
    """The authors of the text: a mark, a name, a count and a part of the whole for each."""
    if not request.tokens:
        return
    writers = sorted((drafter for drafter in request.drafters if drafter.accepted), key=lambda d: -d.accepted)
    rows = [
        (drafter.author, f"{drafter.domain} {formatting.short_name(drafter.peer_id)}", drafter.accepted, False)
        for drafter in writers
    ]
    rows.append((0, "target decoded", request.decoded_tokens, False))
    if request.copied_tokens:
        rows.append((0, "verifier drafted", request.copied_tokens, True))
    cells = [
        _share(author, name, tokens, request.tokens, is_copied=is_copied)
        for author, name, tokens, is_copied in rows
    ]
    columns = max(1, width // _CELL)
    for start in range(0, len(cells), columns):
        yield tuple(span for cell in cells[start : start + columns] for span in cell)


def _share(author: int, name: str, tokens: int, of_tokens: int, *, is_copied: bool) -> Line:
    tone = author_tone(author, is_copied=is_copied)
    return (
        Span(f"{author_mark(author, is_copied=is_copied)} ", tone),
        Span(fit(name, 18), tone),
        Span(fit(f"{tokens}", 4, "right") + " ", Tone.STRONG),
        Span(formatting.bar(tokens / of_tokens, 5), tone),
        Span(fit(formatting.percent(tokens / of_tokens), 6, "right") + "  ", Tone.MUTED),
    )


def _text_span(run: TextRun, *, has_marks: bool) -> Span:
    tone = author_tone(run.author, is_copied=run.is_copied)
    if not has_marks or not (run.author or run.is_copied):
        return Span(run.text, tone)
    mark = author_mark(run.author, is_copied=run.is_copied).translate(_SUPERSCRIPTS)
    blanks = len(run.text) - len(run.text.lstrip(" \n"))
    return Span(run.text[:blanks] + mark + run.text[blanks:], tone)


def _why(request: RequestView, width: int, *, room: int) -> list[Line]:
    """The latest reasons, `AUTHOR: reason` with the reason in a column of its own: the last few, and more
    while there are `room` lines.
    """
    heading = spread(
        (Span("WHY", Tone.HEADING),), (Span("the latest decisions about drafters", Tone.MUTED),), width
    )
    lines: list[Line] = []
    for number, reason in enumerate(reversed(request.why)):
        author, colon, text = reason.partition(": ")
        texts = wrap([Span(text if colon else reason, Tone.MUTED)], max(10, width - _WHO))
        names = [fit(author if colon else "", _WHO - 1) + " ", *[" " * _WHO] * (len(texts) - 1)]
        rows = [(Span(name), *row) for name, row in zip(names, texts, strict=True)]
        if number >= SHOWN_WHY and len(lines) + len(rows) + 2 > room:
            break
        lines = [*rows, *lines]
    return [BLANK, heading, *lines]
