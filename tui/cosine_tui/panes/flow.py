"""The pane of drafting: every running request, its verifier, and the drafters whose tokens it takes.

Drafters of which nothing is accepted just now are only counted.
"""

from collections.abc import Iterator
from typing import Final

from cosine_tui import formatting
from cosine_tui.snapshot import DrafterView, RequestView, Snapshot
from cosine_tui.styled_text import BLANK, Line, Span, Tone, author_mark, author_tone, cut, fit, spread

MAX_DRAFTERS: Final = 4
"""A choice: the most drafters shown of a request; more seldom have tokens accepted at a time."""
# Widths of the columns in cells.
_MARK: Final = 4
_DOMAIN: Final = 11
_NAME: Final = 7
_RATE: Final = 6
_UNIT: Final = 19


def flow_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Each running request with its drafters: the user's own first, then the oldest."""
    if not snapshot.running:
        return [(Span("No request goes on now; press p to type a prompt.", Tone.MUTED),)]
    lines: list[Line] = []
    for request in sorted(snapshot.running, key=lambda request: not request.is_own):
        lines += [BLANK] if lines else []
        lines += [cut(line, width) for line in _request(request, width)]
    return lines


def _request(request: RequestView, width: int) -> Iterator[Line]:
    names = ", ".join(map(formatting.short_name, request.verifiers)) or "nobody yet"
    own = "you" if request.is_own else ""
    about = " ".join(filter(None, (own, request.label)))
    active = [drafter for drafter in request.drafters if drafter.drafted_per_s or drafter.accepted_per_s]
    active.sort(key=lambda drafter: (-drafter.accepted_per_s, -drafter.drafted_per_s))
    shown = [drafter for drafter in active if drafter.accepted_per_s][:MAX_DRAFTERS] or active[:1]
    left = (
        Span(f"{request.state.sign} {request.number} ", Tone.STRONG),
        Span(f"{about}  ", Tone.HEADING),
        Span(f"{formatting.counted(len(active), 'drafter')} → verifier {names}", Tone.MUTED),
    )
    yield spread(left, _rate(request.tokens_per_s, "tokens/s"), width)
    room = width - _MARK - _DOMAIN - _NAME - _RATE - _UNIT
    for drafter in shown:
        yield _drafter(drafter, request.tokens_per_s, room)
    own_name = fit("target itself", _DOMAIN + _NAME)
    yield (
        Span(" " * _MARK + own_name, Tone.PLAIN),
        Span(_arrow(request.own_per_s, request.tokens_per_s, room), Tone.PLAIN),
        *_rate(request.own_per_s, "tokens/s"),
    )


def _drafter(drafter: DrafterView, of_per_s: float, room: int) -> Line:
    tone = author_tone(drafter.author)
    return (
        Span(f"  {author_mark(drafter.author)} ", tone),
        Span(fit(drafter.domain, _DOMAIN - 1) + " ", tone),
        Span(fit(formatting.short_name(drafter.peer_id), _NAME), Tone.MUTED),
        Span(_arrow(drafter.accepted_per_s, of_per_s, room), tone),
        *_rate(drafter.accepted_per_s, f"of {formatting.per_second(drafter.drafted_per_s)} drafts/s"),
    )


def _arrow(per_s: float, of_per_s: float, width: int) -> str:
    """An arrow as long as a rate's part of another; any rate above 0 gets a head."""
    share = min(1.0, per_s / of_per_s) if of_per_s > 0 else 0.0
    cells = round(share * max(0, width - 2))
    arrow = "━" * cells + "▶" if per_s > 0 else formatting.GAP
    return fit(arrow, max(0, width))


def _rate(per_s: float, unit: str) -> Line:
    return (
        Span(fit(formatting.per_second(per_s), _RATE, "right"), Tone.STRONG),
        Span(" " + fit(unit, _UNIT - 1), Tone.MUTED),
    )
