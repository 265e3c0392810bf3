"""One request in progress: authors, passes, rates, and its state when it is over."""

from dataclasses import replace

import pytest

from cosine_p2p.request.origins import FORCED_SOURCE, HOME_SOURCE, TARGET_SOURCE
from cosine_p2p.request.results import Chunk
from cosine_tui.state.snapshot import Moment, RequestDescription, RequestState, TextRun
from cosine_tui.state.tracked_request import SpeedHistory, TrackedRequest
from tests.tui.snapshots import CODE, MATH, SPARE, VERIFIER, progress_of

AUTHORS = {CODE: 1, MATH: 2}


def new_log() -> TrackedRequest:
    return TrackedRequest(
        1, RequestDescription(prompt="Add", strategy="cosine"), began_s=10.0, number_of=AUTHORS.__getitem__
    )


def test_text_keeps_its_authors_and_joins_what_one_wrote_in_a_row() -> None:
    log = new_log()
    log.note_chunk(Chunk("def", (1,), CODE), rounds=1, now_s=10.5)
    log.note_chunk(Chunk(" add", (2,), CODE), rounds=2, now_s=10.6)
    log.note_chunk(Chunk("(", (3,), TARGET_SOURCE), rounds=2, now_s=10.6)
    log.note_chunk(Chunk("", (4,), MATH), rounds=3, now_s=10.7)
    log.note_chunk(Chunk("a, b", (5, 6), TARGET_SOURCE, is_copied=True), rounds=4, now_s=10.8)
    view = log.view()
    assert view.text == (TextRun("def add", 1), TextRun("(", 0), TextRun("a, b", 0, is_copied=True))
    assert (view.state, view.tokens, view.first_s) == (RequestState.WRITING, 6, 0.5)
    log.note_chunk(Chunk(" in", (7,), HOME_SOURCE), rounds=5, now_s=10.9)
    log.note_chunk(Chunk(" name", (8,), FORCED_SOURCE), rounds=5, now_s=10.9)
    # The verifier's own drafts have the same look in the text.
    assert log.view().text[-1] == TextRun("a, b in name", 0, is_copied=True)
    told = [(origin.name, origin.author, origin.tokens) for origin in log.view().origins]
    assert told == [
        ("drafter", 1, 2), ("drafter", 2, 1),
        ("verifier's drafter", 0, 1), ("forced", 0, 1), ("copied", 0, 2), ("target alone", 0, 1),
    ]  # fmt: skip
    assert log.view().tokens == sum(tokens for *_, tokens in told)


def test_rates_are_of_just_now_and_of_the_whole_once_it_is_over() -> None:
    log = new_log()
    log.note_chunk(Chunk("x" * 40, tuple(range(40)), CODE), rounds=1, now_s=10.5)
    log.note_progress(progress_of(40, code=(80, 40)), 11.0)
    assert log.view().tokens_per_s == pytest.approx(40.0)
    for second in range(12, 21):
        log.note_progress(progress_of(40, code=(80, 40)), float(second))
    assert log.view().tokens_per_s == 0.0
    log.end(RequestState.FINISHED, 20.0)
    view = log.view()
    assert (view.tokens_per_s, view.origins[0].per_s, view.seconds) == pytest.approx((4.0, 4.0, 10.0))
    assert (view.drafters[0].drafted_per_s, view.drafters[0].accepted_per_s) == pytest.approx((8.0, 4.0))


def test_the_timeline_tells_what_happened_and_when() -> None:
    log = new_log()
    log.note_progress(progress_of(serving=(VERIFIER,)), 10.5)
    log.note_chunk(Chunk("x", (1,), CODE), rounds=1, now_s=11.0)
    lost = replace(progress_of(serving=(SPARE,)), tried=(f"{VERIFIER} was lost: the stream ended",))
    log.note_progress(replace(lost, why=("code: 15 tokens deep", "code: dropped"), decisions=2), 12.0)
    log.end(RequestState.FAILED, 13.0, error="Nobody is left.")
    assert log.view().timeline == (
        Moment(0.0, "asked"),
        Moment(0.5, f"verifier {VERIFIER[-6:]} serves it from token 0"),
        Moment(0.5, "code: 15 tokens deep"),
        Moment(1.0, "the first token came"),
        Moment(2.0, f"verifier {VERIFIER[-6:]} was lost: the stream ended", is_alert=True),
        Moment(2.0, f"verifier {SPARE[-6:]} serves it from token 1"),
        Moment(2.0, "code: dropped"),
        Moment(3.0, "failed: Nobody is left.", is_alert=True),
    )


def test_a_long_request_has_longer_intervals_and_not_more_of_them() -> None:
    history = SpeedHistory(began_s=0.0, interval_s=1.0, limit=8)
    history.note(0.0, 0.9)
    assert not history.speeds.per_s
    for second in range(1, 65):
        history.note(3.0 * second, float(second))
    speeds = history.speeds
    assert len(speeds.per_s) <= 8 and speeds.interval_s == 8.0 and speeds.per_s == pytest.approx((3.0,) * 8)
