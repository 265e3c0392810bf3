"""Where the time of texts over a ring of stages goes, token by token.

A token is known a traversal after the pass that feeds the one before it has begun. So from the first token on a
text lasts as long as the times between the beginnings of these passes, and a traversal. Here are these times by
what they were waited for.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cosine_lab.emulation.traces import CANDIDATES, Trace
from cosine_lab.experiments.experiment import CellResult, JsonRow
from cosine_lab.simulation.verifiers import FeedNotes
from cosine_node.engine.ngram import FollowerIndex


class Wait(StrEnum):
    """What a text waited for before a token was fed."""

    START = "first_token"
    """For the prompt: links, its passes, and the traversal after which its first token is known."""
    NOT_OFFERED = "offered_by_nobody"
    """For the token itself: it was among nobody's candidates."""
    NOT_SENT = "not_drafted_in_time"
    """For the token itself: somebody's candidate, which stood in no tree before it was known."""
    DRAFT = "until_drafted"
    """For a draft that came before the token was known."""
    NOT_FED = "drafted_and_not_fed"
    """For the token itself, as other nodes were fed than its draft."""
    TURN = "until_fed"
    """For the pass that fed its draft."""
    END = "last_token"
    """For the traversal after the last pass."""


def is_covered(trace: Trace, *, tokens: int) -> Iterator[tuple[bool, bool]]:
    """Of each of the first tokens of a text: if any drafter, or copying, offers it, and as a first choice."""
    index = FollowerIndex()
    for position, token in enumerate(trace.stream[:tokens]):
        copied = [found for found, _ in index.estimate().found[:CANDIDATES]]
        offers = [copied, *(own.candidate_tokens[position].tolist() for own in trace.drafters.values())]
        yield any(token in offer for offer in offers), any(offer[:1] == [token] for offer in offers)
        index.extend([token])


@dataclass(frozen=True, slots=True)
class Waits:
    """Milliseconds a token by what texts waited for, which add up to all of it, and how many tokens did each."""

    ms: JsonRow
    tokens: JsonRow


def waits_of(result: CellResult, traces: Sequence[Trace]) -> Waits:
    """The waits of a run over texts."""
    seconds = dict.fromkeys(Wait, 0.0)
    tokens: Counter[Wait] = Counter()
    for told, notes, trace in zip(result.report.results, result.feeds, traces, strict=True):
        for wait, waited_s in _waits(notes, trace, began_s=told.began_s, ended_s=told.began_s + told.seconds):
            seconds[wait] += waited_s
            tokens[wait] += waited_s > 0.0
    total = result.report.tokens
    return Waits(
        {wait.value: 1e3 * seconds[wait] / total for wait in Wait}, {wait.value: tokens[wait] for wait in Wait}
    )


def _waits(notes: FeedNotes, trace: Trace, *, began_s: float, ended_s: float) -> Iterator[tuple[Wait, float]]:
    before_s, wait = began_s, Wait.START
    offers = is_covered(trace, tokens=len(notes.tokens))
    for one, (is_offered, _) in zip(notes.tokens, offers, strict=True):
        if one.fed_s is None:
            continue
        if wait is not Wait.START and one.stood_s is not None:
            stood_s = max(before_s, one.stood_s)
            yield Wait.DRAFT, stood_s - before_s
            before_s, wait = stood_s, Wait.TURN if one.fed_s < one.known_s else Wait.NOT_FED
        elif wait is not Wait.START:
            wait = Wait.NOT_SENT if is_offered else Wait.NOT_OFFERED
        yield wait, one.fed_s - before_s
        before_s, wait = one.fed_s, Wait.END
    yield wait, ended_s - before_s
