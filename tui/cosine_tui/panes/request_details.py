"""Everything that is known of one request: its text by authors, its speed, its timeline, its accounts."""

from collections.abc import Iterator
from typing import Final

from cosine_tui import formatting
from cosine_tui.panes.node_details import fact_lines
from cosine_tui.panes.request import head_lines, text_lines
from cosine_tui.snapshot import Moment, RequestView, Snapshot
from cosine_tui.styled_text import BLANK, Line, Span, Tone, author_mark, author_tone, cut, fit, wrap

PLOT_ROWS: Final = 8
"""A choice: rows of the plot of speed on a page that scrolls."""
# Widths in cells of a moment's time, of a drafter's name and of each of its figures.
_TIME: Final = 9
_DRAFTER: Final = 22
_FIGURE: Final = 10


def request_detail_lines(snapshot: Snapshot, number: int, width: int, *, has_marks: bool) -> list[Line]:
    """The page of a request on `width` cells."""
    request = snapshot.request(number)
    if request is None:
        return [(Span(f"Request {number} is no longer kept.", Tone.WARNING),)]
    text = text_lines(request, width, has_marks=has_marks) or [(Span("Nothing is written yet.", Tone.MUTED),)]
    lines = [
        *head_lines(snapshot, request, width, plot_rows=PLOT_ROWS),
        BLANK,
        (Span("TEXT", Tone.HEADING),),
        *text,
        BLANK,
        (Span("TIMELINE", Tone.HEADING),),
        *(line for moment in request.timeline for line in _moment(moment, width)),
        BLANK,
        (Span("ACCOUNTS", Tone.HEADING),),
        *_drafters(request),
        *(line for name, value in _accounts(request) for line in fact_lines(name, value, width)),
    ]
    return [cut(line, width) for line in lines]


def _moment(moment: Moment, width: int) -> Iterator[Line]:
    tone = Tone.WARNING if moment.is_alert else Tone.PLAIN
    texts = wrap([Span(moment.text, tone)], max(10, width - _TIME - 2))
    yield (Span(fit(f"{moment.at_s:.2f} s", _TIME, "right") + "  ", Tone.MUTED), *texts[0])
    for text in texts[1:]:
        yield (Span(" " * (_TIME + 2)), *text)


def _drafters(request: RequestView) -> Iterator[Line]:
    """A table of the drafters: what each sent, and what became of it."""
    if not request.drafters:
        return
    names = ("drafted", "right", "of those", "RTT")
    heading = "".join(fit(name, _FIGURE, "right") for name in names)
    yield (Span(fit("drafter", _DRAFTER) + heading, Tone.MUTED),)
    for drafter in sorted(request.drafters, key=lambda drafter: -drafter.accepted):
        hits = drafter.accepted / drafter.drafted if drafter.drafted else None
        figures = (
            f"{drafter.drafted:,}",
            f"{drafter.accepted:,}",
            formatting.percent(hits),
            formatting.milliseconds(drafter.rtt_ms),
        )
        name = f"{author_mark(drafter.author)} {drafter.domain} {formatting.short_name(drafter.peer_id)}"
        yield (
            Span(fit(name, _DRAFTER), author_tone(drafter.author)),
            *(Span(fit(figure, _FIGURE, "right")) for figure in figures),
        )


def _accounts(request: RequestView) -> Iterator[tuple[str, str]]:
    account = request.account
    if account is None:
        known = "The figures of the whole follow when the request is over."
        yield "", known if not request.state.is_over else "It never began at a verifier."
        return
    for peer_id, tokens in account.verifiers:
        yield f"verifier {formatting.short_name(peer_id)}", f"committed {formatting.counted(tokens, 'token')}"
    yield "prompt", formatting.counted(account.prompt_tokens, "token")
    yield "drafted", f"{formatting.counted(account.drafted, 'token')} in trees"
    hits = formatting.percent(account.accepted / account.offered if account.offered else None)
    offered = formatting.counted(account.offered, "token")
    yield "guessed", f"{offered} of the text in time, {account.accepted:,} of them right ({hits})"
    yield (
        "target itself",
        f"{request.decoded_tokens:,} tokens decoded, {request.copied_tokens:,} copied",
    )
    yield "near ties", f"{account.near_ties:,}"
    sent, received = formatting.file_size(account.bytes_sent), formatting.file_size(account.bytes_received)
    yield "traffic", f"{sent} sent, {received} received"
