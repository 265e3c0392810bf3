"""The list of requests, running ones first, with their verifiers and active drafters."""

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import ListRow, Tone, author_mark, author_tone, cut, fit, spread, toned, wrap
from cosine_tui.state.snapshot import RequestState, RequestView, Snapshot
from cosine_tui.state.view import ALL, Listing

MAX_DRAFTERS: Final = 4  # Maximum number of drafters shown per request; more are rarely active at once.
STATE_TONES: Final = {
    RequestState.ASKING: Tone.WARNING,
    RequestState.WRITING: Tone.ACCENT,
    RequestState.FINISHED: Tone.GOOD,
    RequestState.CANCELLED: Tone.MUTED,
    RequestState.FAILED: Tone.BAD,
}
"""The tones of the signs of states."""
NOTHING_ASKED: Final = "Nothing has been asked yet; type a prompt and press Enter."


# Widths in cells of the columns of a running request.
_MARK: Final = 4
_DOMAIN: Final = 11
_NAME: Final = 7
_RATE: Final = 6
_WITH_UNITS: Final = 60  # Minimum width of a pane with whole units.


def request_rows(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[ListRow]:
    """Return the requests that match `listing`; a running one has a line for each author of its text."""
    requests = listing.requests(snapshot.requests)
    if not requests:
        nothing = (
            "No request fits the filter; /filter alone shows all again." if snapshot.requests else NOTHING_ASKED
        )
        return [ListRow(line) for line in wrap(toned(nothing, Tone.MUTED), width)]
    rows: list[ListRow] = []
    was_running = False
    for request in requests:
        is_running = not request.state.is_over
        rows += [ListRow(Text())] if rows and (is_running or was_running) else []
        was_running = is_running
        lines = _running(request, width) if is_running else iter([_over(request, width)])
        rows.append(ListRow(next(lines), str(request.number)))
        rows += [ListRow(cut(line, width)) for line in lines]
    return rows


def _name(request: RequestView) -> Text:
    about = " ".join(filter(None, ("you" if request.is_own else "", request.label)))
    sign = toned(f"{request.state.sign} {request.number} ", STATE_TONES[request.state])
    return Text.assemble(sign, toned(f"{about}  ", Tone.HEADING))


def _over(request: RequestView, width: int) -> Text:
    left = Text.assemble(_name(request), toned(request.prompt[:width], Tone.MUTED))
    right = Text.assemble(
        toned(f" {request.tokens:,} tokens", Tone.MUTED),
        fit(formatting.per_second(request.tokens_per_s), _RATE, Tone.STRONG, "right"),
        toned(" /s", Tone.MUTED),
    )
    return spread(left, right, width)


def _running(request: RequestView, width: int) -> Iterator[Text]:
    active = [drafter for drafter in request.drafters if drafter.drafted_per_s or drafter.accepted_per_s]
    active.sort(key=lambda drafter: (-drafter.accepted_per_s, -drafter.drafted_per_s))
    names = ", ".join(map(formatting.short_name, request.verifiers)) or "nobody yet"
    verifier = "verifier " if width >= 74 else ""
    served = toned(f"{formatting.counted(len(active), 'drafter')} → {verifier}{names}", Tone.MUTED)
    total = _rate(request.tokens_per_s, "tokens/s", width)
    arrow = max(0, width - _MARK - _DOMAIN - _NAME - total.cell_len)
    yield spread(Text.assemble(_name(request), served), total, width)
    for drafter in [drafter for drafter in active if drafter.accepted_per_s][:MAX_DRAFTERS] or active[:1]:
        tone = author_tone(drafter.author)
        of_drafted = f"of {formatting.per_second(drafter.drafted_per_s)}"
        yield Text.assemble(
            fit(f"  {author_mark(drafter.author)} ", _MARK, tone),
            fit(drafter.domain, _DOMAIN - 1, tone),
            " ",
            fit(formatting.short_name(drafter.peer_id), _NAME, Tone.MUTED),
            _arrow(drafter.accepted_per_s, request.tokens_per_s, arrow, tone),
            _rate(drafter.accepted_per_s, of_drafted + " drafts/s" * (width >= _WITH_UNITS), width),
        )
    for origin in request.origins:
        if origin.is_own and origin.per_s:
            tone = author_tone(0, is_copied=origin.is_verifier_draft)
            yield Text.assemble(
                fit(f"  {author_mark(0, is_copied=origin.is_verifier_draft)} ", _MARK, tone),
                fit(origin.name, _DOMAIN + _NAME, tone),
                _arrow(origin.per_s, request.tokens_per_s, arrow, tone),
                _rate(origin.per_s, "tokens/s", width),
            )


def _arrow(per_s: float, of_per_s: float, width: int, tone: Tone) -> Text:
    """Draw an arrow as long as a rate's share of another; any rate above 0 has a head."""
    share = min(1.0, per_s / of_per_s) if of_per_s > 0 else 0.0
    return fit("━" * round(share * max(0, width - 2)) + "▶" if per_s > 0 else formatting.GAP, width, tone)


def _rate(per_s: float, unit: str, width: int) -> Text:
    rate = fit(formatting.per_second(per_s), _RATE, Tone.STRONG, "right")
    return Text.assemble(rate, " ", fit(unit, 18 if width >= _WITH_UNITS else 9, Tone.MUTED))
