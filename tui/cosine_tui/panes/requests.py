"""The list of requests: the running ones with their verifier and the drafters whose tokens they take, then others.

Drafters of which nothing is accepted just now are only counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cosine_tui import formatting
from cosine_tui.listing import ALL, Listing
from cosine_tui.snapshot import DrafterView, RequestState, RequestView, Snapshot
from cosine_tui.styled_text import (
    BLANK,
    Line,
    ListRow,
    Span,
    Tone,
    author_mark,
    author_tone,
    cut,
    fit,
    spread,
    wrap,
)

MAX_DRAFTERS: Final = 4
"""A choice: the most drafters shown of a request; more seldom have tokens accepted at a time."""
STATE_TONES: Final = {
    RequestState.ASKING: Tone.WARNING,
    RequestState.WRITING: Tone.ACCENT,
    RequestState.FINISHED: Tone.GOOD,
    RequestState.CANCELLED: Tone.MUTED,
    RequestState.FAILED: Tone.BAD,
}
"""The tones of the signs of states."""
# Widths of the columns in cells, and the pane's widths from which on units and words are written out.
_MARK: Final = 4
_DOMAIN: Final = 11
_NAME: Final = 7
_RATE: Final = 6
_WITH_UNITS: Final = 60
_WITH_WORDS: Final = 74
_NOTHING: Final = "Nothing has been asked yet; type a prompt and press Enter."
_NOTHING_FITS: Final = "No request fits the filter; /filter alone shows all again."


@dataclass(frozen=True, slots=True)
class _RequestWidths:
    """Widths in cells of the columns that depend on the pane's."""

    arrow: int
    unit: int
    has_units: bool

    @classmethod
    def of(cls, width: int) -> "_RequestWidths":
        has_units = width >= _WITH_UNITS
        unit = 19 if has_units else 10
        arrow = max(0, width - _MARK - _DOMAIN - _NAME - _RATE - unit)
        return cls(arrow=arrow, unit=unit, has_units=has_units)


def request_rows(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[ListRow]:
    """The requests that fit `listing` on `width` cells; a running one has a line for every author of its text."""
    requests = listing.requests(snapshot.requests)
    if not requests:
        nothing = (
            _NOTHING if not snapshot.requests else "No request fits the filter; /filter alone shows all again."
        )
        return [ListRow(line) for line in wrap([Span(nothing, Tone.MUTED)], width)]
    widths = _RequestWidths.of(width)
    rows: list[ListRow] = []
    was_running = False
    for request in requests:
        is_running = not request.state.is_over
        rows += [ListRow(BLANK)] if rows and (is_running or was_running) else []
        was_running = is_running
        lines = _running(request, width, widths) if is_running else iter([_over(request, width)])
        rows.append(ListRow(cut(next(lines), width), str(request.number)))
        rows += [ListRow(cut(line, width)) for line in lines]
    return rows


def _over(request: RequestView, width: int) -> Line:
    about = " ".join(filter(None, ("you" if request.is_own else "", request.label)))
    left = (
        Span(f"{request.state.sign} {request.number} ", STATE_TONES[request.state]),
        Span(f"{about}  ", Tone.HEADING),
        Span(request.prompt[:width], Tone.MUTED),
    )
    right = (
        Span(f" {request.tokens:,} tokens", Tone.MUTED),
        Span(fit(formatting.per_second(request.tokens_per_s), _RATE, "right"), Tone.STRONG),
        Span(" /s", Tone.MUTED),
    )
    return spread(left, right, width)


def _running(request: RequestView, width: int, widths: _RequestWidths) -> Iterator[Line]:
    names = ", ".join(map(formatting.short_name, request.verifiers)) or "nobody yet"
    verifier = "verifier " if width >= _WITH_WORDS else ""
    about = " ".join(filter(None, ("you" if request.is_own else "", request.label)))
    active = [drafter for drafter in request.drafters if drafter.drafted_per_s or drafter.accepted_per_s]
    active.sort(key=lambda drafter: (-drafter.accepted_per_s, -drafter.drafted_per_s))
    shown = [drafter for drafter in active if drafter.accepted_per_s][:MAX_DRAFTERS] or active[:1]
    left = (
        Span(f"{request.state.sign} {request.number} ", STATE_TONES[request.state]),
        Span(f"{about}  ", Tone.HEADING),
        Span(f"{formatting.counted(len(active), 'drafter')} → {verifier}{names}", Tone.MUTED),
    )
    yield spread(left, _rate(request.tokens_per_s, "tokens/s", widths), width)
    for drafter in shown:
        yield _drafter(drafter, request.tokens_per_s, widths)
    own = (("target decoded", request.decoded_per_s, False), ("verifier drafted", request.copied_per_s, True))
    for name, per_s, is_copied in own:
        if per_s or not is_copied:
            tone = author_tone(0, is_copied=is_copied)
            yield (
                Span(f"  {author_mark(0, is_copied=is_copied)} ", tone),
                Span(fit(name, _DOMAIN + _NAME), tone),
                Span(_arrow(per_s, request.tokens_per_s, widths.arrow), tone),
                *_rate(per_s, "tokens/s", widths),
            )


def _drafter(drafter: DrafterView, of_per_s: float, widths: _RequestWidths) -> Line:
    tone = author_tone(drafter.author)
    of_drafted = f"of {formatting.per_second(drafter.drafted_per_s)}{' drafts/s' if widths.has_units else ''}"
    return (
        Span(f"  {author_mark(drafter.author)} ", tone),
        Span(fit(drafter.domain, _DOMAIN - 1) + " ", tone),
        Span(fit(formatting.short_name(drafter.peer_id), _NAME), Tone.MUTED),
        Span(_arrow(drafter.accepted_per_s, of_per_s, widths.arrow), tone),
        *_rate(drafter.accepted_per_s, of_drafted, widths),
    )


def _arrow(per_s: float, of_per_s: float, width: int) -> str:
    """An arrow as long as a rate's part of another; any rate above 0 gets a head."""
    share = min(1.0, per_s / of_per_s) if of_per_s > 0 else 0.0
    cells = round(share * max(0, width - 2))
    arrow = "━" * cells + "▶" if per_s > 0 else formatting.GAP
    return fit(arrow, max(0, width))


def _rate(per_s: float, unit: str, widths: _RequestWidths) -> Line:
    return (
        Span(fit(formatting.per_second(per_s), _RATE, "right"), Tone.STRONG),
        Span(" " + fit(unit, widths.unit - 1), Tone.MUTED),
    )
