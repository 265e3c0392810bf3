"""The pane of a request: figures, the authors of its text, the text as it comes, the controller's reasons."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cosine_tui import formatting
from cosine_tui.snapshot import RequestState, RequestView, Snapshot, TextRun
from cosine_tui.styled_text import BLANK, Line, Span, Tone, author_mark, author_tone, cut, fit, spread, wrap

SHOWN_WHY: Final = 4
"""A choice: reasons shown however little room there is."""
PROMPT_CHARACTERS: Final = 2000
"""Bounds the time of a redraw: more characters than `PROMPT_LINES` hold."""
PROMPT_LINES: Final = 3
"""A choice: enough to recognise a prompt by."""
# Widths in cells: of a drafter's name before a reason, and of one author's part of the text.
_WHO: Final = 12
_CELL: Final = 38
# Tones, words and letters by state, finish reason and mark.
_STATE_TONES: Final = {
    RequestState.ASKING: Tone.WARNING,
    RequestState.WRITING: Tone.ACCENT,
    RequestState.FINISHED: Tone.GOOD,
    RequestState.CANCELLED: Tone.MUTED,
    RequestState.FAILED: Tone.BAD,
}
_FINISHED: Final = {"eos": " at its end", "length": " at the length limit", "stop": " at a stop string"}
_SUPERSCRIPTS: Final = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")


@dataclass(frozen=True, slots=True)
class RequestPage:
    """The lines of a request. `end` is the line on which its text ends for now, None where nothing is written."""

    lines: tuple[Line, ...]
    end: int | None = None


def request_page(
    snapshot: Snapshot, request: RequestView | None, width: int, *, has_marks: bool = False, height: int = 0
) -> RequestPage:
    """A request on `width` cells; with `has_marks` every drafter's letter stands before its tokens.

    Where `height` leaves room there are more reasons than the last few.
    """
    if request is None:
        return RequestPage(((Span("Nothing has been asked yet; press p to type a prompt.", Tone.MUTED),),))
    top = [*_top(snapshot, request, width), BLANK]
    text = wrap([_text_span(run, has_marks=has_marks) for run in request.text], width) if request.text else []
    if request.error:
        text += wrap([Span(f"✗ {request.error}", Tone.BAD)], width)
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


def _top(snapshot: Snapshot, request: RequestView, width: int) -> Iterator[Line]:
    state = request.state
    reason = _FINISHED.get(request.finish_reason, "")
    seed = "" if request.seed is None else f"  seed {request.seed}"
    yield (
        Span(f"{state.sign} {state.word}{reason}", _STATE_TONES[state]),
        Span(f"  {request.strategy}  {_served(snapshot, request)}{seed}", Tone.MUTED),
    )
    for line in wrap([Span(request.prompt[:PROMPT_CHARACTERS], Tone.MUTED)], width - 2)[:PROMPT_LINES]:
        yield (Span("> ", Tone.MUTED), *line)
    yield BLANK
    yield _figures(request)
    yield _passes(request, width)
    yield from _legend(request, width)


def _served(snapshot: Snapshot, request: RequestView) -> str:
    if not request.verifiers:
        return "no verifier yet"
    nodes = [snapshot.node(peer_id) for peer_id in request.verifiers]
    names = [formatting.short_name(peer_id) for peer_id in request.verifiers]
    rtts = [f" at {formatting.milliseconds(node.rtt_ms)}" if node and node.rtt_ms else "" for node in nodes]
    return "verifier " + ", ".join(name + rtt for name, rtt in zip(names, rtts, strict=True))


def _figures(request: RequestView) -> Line:
    first = formatting.NONE if request.first_s is None else f"{request.first_s:.2f} s"
    parts = (
        (formatting.per_second(request.tokens_per_s), "tokens/s"),
        (f"{request.tokens:,}", "tokens"),
        (f"{request.rounds:,}", "passes"),
        (f"{request.seconds:.1f} s", "so far" if not request.state.is_over else "in all"),
        (first, "to the first"),
    )
    spans = [span for value, unit in parts for span in (Span(value, Tone.STRONG), Span(f" {unit}   ", Tone.MUTED))]
    return (*spans[:-1], Span(spans[-1].text.rstrip(), Tone.MUTED))


def _passes(request: RequestView, width: int) -> Line:
    heading = "accepted in each pass  "
    mean = request.tokens / request.rounds if request.rounds else 0.0
    most = max(request.passes, default=0)
    tail = f"  at most {most}, {mean:.1f} tokens a pass"
    spark = formatting.sparkline(request.passes, max(8, width - len(heading) - len(tail)))
    return (Span(heading, Tone.MUTED), Span(spark, Tone.ACCENT), Span(tail, Tone.MUTED))


def _legend(request: RequestView, width: int) -> Iterator[Line]:
    """The authors of the text: a mark, a name, a count and a part of the whole for each."""
    if not request.tokens:
        return
    writers = sorted((drafter for drafter in request.drafters if drafter.accepted), key=lambda d: -d.accepted)
    rows = [
        (drafter.author, f"{drafter.domain} {formatting.short_name(drafter.peer_id)}", drafter.accepted)
        for drafter in writers
    ]
    rows.append((0, "target itself", request.own_tokens))
    cells = [_share(author, name, tokens, request.tokens) for author, name, tokens in rows]
    columns = max(1, width // _CELL)
    for start in range(0, len(cells), columns):
        yield tuple(span for cell in cells[start : start + columns] for span in cell)


def _share(author: int, name: str, tokens: int, of_tokens: int) -> Line:
    tone = author_tone(author)
    return (
        Span(f"{author_mark(author)} ", tone),
        Span(fit(name, 18), tone),
        Span(fit(f"{tokens}", 4, "right") + " ", Tone.STRONG),
        Span(formatting.bar(tokens / of_tokens, 5), tone),
        Span(fit(formatting.percent(tokens / of_tokens), 6, "right") + "  ", Tone.MUTED),
    )


def _text_span(run: TextRun, *, has_marks: bool) -> Span:
    if not has_marks or not run.author:
        return Span(run.text, author_tone(run.author))
    mark = author_mark(run.author).translate(_SUPERSCRIPTS)
    blanks = len(run.text) - len(run.text.lstrip(" \n"))
    return Span(run.text[:blanks] + mark + run.text[blanks:], author_tone(run.author))


def _why(request: RequestView, width: int, *, room: int) -> list[Line]:
    """The latest reasons, `AUTHOR: reason` with the reason in a column of its own: the last few, and more
    while there are `room` lines.
    """
    heading = spread((Span("WHY", Tone.HEADING),), (Span("the controller's latest decisions", Tone.MUTED),), width)
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
