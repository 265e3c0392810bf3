"""The reasons that a session keeps for people are bounded."""

from cosine_p2p.session_counts import LATEST_WHY, MAX_WHY, SessionCounts


def test_the_first_reasons_and_the_latest_are_kept() -> None:
    counts = SessionCounts()
    for number in range(MAX_WHY + 5):
        counts.note_line(str(number))
    assert counts.decisions == MAX_WHY + 5
    assert counts.why == [str(number) for number in range(MAX_WHY)]
    assert list(counts.latest_why) == [str(number) for number in range(MAX_WHY + 5 - LATEST_WHY, MAX_WHY + 5)]
