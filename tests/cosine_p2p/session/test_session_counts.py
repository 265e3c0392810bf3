"""Counts of a session, and its reasons in words."""

from cosine_p2p.session.session import LATEST_WHY, MAX_WHY, SessionCounts, timed_out
from cosine_protocol.errors import ErrorCode, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.limits import HOME_AUTHOR


def test_a_commit_is_counted_by_who_drafted_it() -> None:
    counts = SessionCounts()
    counts.note_commit("v", bytes([1, HOME_AUTHOR, 2, 0]), near_ties=1)
    counts.note_commit("v", bytes([0]), near_ties=0)
    assert (counts.rounds, counts.near_ties, counts.accepted, counts.home_tokens) == (2, 1, 2, 1)
    assert counts.tokens_by_verifier == {"v": 5}


def test_the_first_and_the_latest_reasons_are_kept() -> None:
    counts, lines = SessionCounts(), [str(number) for number in range(MAX_WHY + 1)]
    for line in lines:
        counts.note_line(line)
    assert (counts.why, list(counts.latest_why)) == (lines[:MAX_WHY], lines[-LATEST_WHY:])
    assert counts.decisions == len(lines)


def test_each_failure_is_told_once_in_words() -> None:
    counts = SessionCounts()
    assert counts.nobody_left().startswith("No verifier was found")
    for error in (PeerError(ErrorCode.OVERLOADED, "full"), PeerLost("v", "gone"), RemoteProtocolError("odd")):
        counts.note_tried("v", error)
        counts.note_tried("v", error)
    sentence = "No verifier could finish the request. Tried: v refused: full; v was lost: gone; "
    assert counts.nobody_left() == sentence + "v broke the protocol: odd."


def test_a_request_that_ran_out_of_time_says_what_it_waited_for() -> None:
    assert str(timed_out(["first", "second"])).startswith("first had no place")
    assert "longer than its timeout" in str(timed_out([]))
