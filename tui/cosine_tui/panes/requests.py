"""The list of requests, running ones first, with verifiers, and drafters whose tokens they take just now."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from cosine_tui.looks import formatting
from cosine_tui.looks.styled_text import ListRow, Tone, author_mark, author_tone, cut, fit, spread, toned, wrap
from cosine_tui.state.snapshot import RequestState, RequestView, Snapshot
from cosine_tui.state.view import ALL, Listing

MAX_DRAFTERS: Final = 4  # The most drafters shown of a request; more seldom have tokens accepted at a time.
STATE_TONES: Final = {
    RequestState.ASKING: Tone.WARNING,
    RequestState.WRITING: Tone.ACCENT,
    RequestState.FINISHED: Tone.GOOD,
    RequestState.CANCELLED: Tone.MUTED,
    RequestState.FAILED: Tone.BAD,
}
"""The tones of the signs of states."""
NOTHING_ASKED: Final = "Nothing has been asked yet; type a prompt and press Enter."


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths in cells of the columns of a running request in a pane of `width` cells."""

    width: int
    mark: int = 4
    domain: int = 11
    name: int = 7
    rate: int = 6

    @property
    def has_units(self) -> bool:
        return self.width >= 60

    @property
    def unit(self) -> int:
        return 19 if self.has_units else 10

    @property
    def arrow(self) -> int:
        return max(0, self.width - self.mark - self.domain - self.name - self.rate - self.unit)


def request_rows(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[ListRow]:
    """The requests that fit `listing`; a running one has a line for every author of its text."""
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
        lines = _running(request, _Columns(width)) if is_running else iter([_over(request, width)])
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
        fit(formatting.per_second(request.tokens_per_s), _Columns(width).rate, Tone.STRONG, "right"),
        toned(" /s", Tone.MUTED),
    )
    return spread(left, right, width)


def _running(request: RequestView, columns: _Columns) -> Iterator[Text]:
    active = [drafter for drafter in request.drafters if drafter.drafted_per_s or drafter.accepted_per_s]
    active.sort(key=lambda drafter: (-drafter.accepted_per_s, -drafter.drafted_per_s))
    names = ", ".join(map(formatting.short_name, request.verifiers)) or "nobody yet"
    verifier = "verifier " if columns.width >= 74 else ""
    served = toned(f"{formatting.counted(len(active), 'drafter')} → {verifier}{names}", Tone.MUTED)
    total = _rate(request.tokens_per_s, "tokens/s", columns)
    yield spread(Text.assemble(_name(request), served), total, columns.width)
    for drafter in [drafter for drafter in active if drafter.accepted_per_s][:MAX_DRAFTERS] or active[:1]:
        tone = author_tone(drafter.author)
        of_drafted = f"of {formatting.per_second(drafter.drafted_per_s)}"
        yield Text.assemble(
            fit(f"  {author_mark(drafter.author)} ", columns.mark, tone),
            fit(drafter.domain, columns.domain - 1, tone),
            " ",
            fit(formatting.short_name(drafter.peer_id), columns.name, Tone.MUTED),
            _arrow(drafter.accepted_per_s, request.tokens_per_s, columns.arrow, tone),
            _rate(drafter.accepted_per_s, of_drafted + " drafts/s" * columns.has_units, columns),
        )
    for origin in request.origins:
        if origin.is_own and origin.per_s:
            tone = author_tone(0, is_copied=origin.is_verifier_draft)
            yield Text.assemble(
                fit(f"  {author_mark(0, is_copied=origin.is_verifier_draft)} ", columns.mark, tone),
                fit(origin.name, columns.domain + columns.name, tone),
                _arrow(origin.per_s, request.tokens_per_s, columns.arrow, tone),
                _rate(origin.per_s, "tokens/s", columns),
            )


def _arrow(per_s: float, of_per_s: float, width: int, tone: Tone) -> Text:
    """An arrow as long as a rate's part of another; any rate above 0 gets a head."""
    share = min(1.0, per_s / of_per_s) if of_per_s > 0 else 0.0
    return fit("━" * round(share * max(0, width - 2)) + "▶" if per_s > 0 else formatting.GAP, width, tone)


def _rate(per_s: float, unit: str, columns: _Columns) -> Text:
    rate = fit(formatting.per_second(per_s), columns.rate, Tone.STRONG, "right")
    return Text.assemble(rate, " ", fit(unit, columns.unit - 1, Tone.MUTED))
