"""Heads that share a stage have one voice, and a liar cannot take the voice of others by naming their stages."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.audit_rule import AuditState, is_decided, state_of
from cosine_p2p.trust.voices import Opinion, Poll, alternating, voices

STAGES = [f"stage {number}" for number in range(6)]


def accusing(judge: str, *stages: str) -> Opinion:
    return Opinion(judge, True, frozenset(stages))


def clearing(judge: str, *stages: str) -> Opinion:
    return Opinion(judge, False, frozenset(stages))


@st.composite
def opinions(draw: st.DrawFn) -> list[Opinion]:
    """Judges of few stages, so that many share one."""
    said = draw(st.lists(st.tuples(st.booleans(), st.frozensets(st.sampled_from(STAGES), max_size=3)), max_size=8))
    return [Opinion(f"judge {number}", accuses, stages) for number, (accuses, stages) in enumerate(said)]


def largest(words: Sequence[frozenset[str]]) -> int:
    """The most words that share nothing, by trying all."""
    if not words:
        return 0
    first, *others = words
    return max(largest(others), 1 + largest([word for word in others if word.isdisjoint(first)]))


@given(opinions())
def test_voices_are_never_more_than_words_that_share_nothing(said: list[Opinion]) -> None:
    words = [one.grounds for one in said]
    assert min(1, len(words)) <= voices(words) <= largest(words)


@given(opinions(), st.sets(st.sampled_from([*STAGES, "judge 0", "judge 1"])))
def test_a_liar_lowers_no_voice_of_those_who_disagree_with_it(said: list[Opinion], named: set[str]) -> None:
    before = Poll.of(said)
    after = Poll.of([*said, accusing("liar", *named)])
    assert after.clearing == before.clearing
    after = Poll.of([*said, clearing("liar", *named)])
    assert after.accusing == before.accusing


@pytest.mark.parametrize("heads", (2, 6))
def test_who_names_the_stages_of_all_honest_heads_does_not_make_them_one(heads: int) -> None:
    honest = [accusing(f"head {number}", f"stage {number}") for number in range(heads)]
    bridge = accusing("bridge", *(f"stage {number}" for number in range(heads)))
    assert Poll.of([bridge, *honest]).accusing == heads


@given(opinions(), st.sets(st.sampled_from(STAGES)))
def test_an_author_that_names_stages_of_others_silences_no_accuser(said: list[Opinion], named: set[str]) -> None:
    with_names, without = Poll.of(said, author={"author", *named}), Poll.of(said, author={"author"})
    assert with_names.accusing == without.accusing and with_names.clearing <= without.clearing


def test_judges_of_one_address_range_have_one_voice() -> None:
    many = [Opinion(f"judge {number}", True, address_range="203.0.113.0/24") for number in range(30)]
    assert Poll.of(many).accusing == 1
    # Without ranges each has a voice.
    assert Poll.of([Opinion(one.judge, True) for one in many]).accusing == 30
    # A judge in the author's range may clear it: many have one provider.
    assert Poll.of([Opinion("judge", False, address_range="203.0.113.0/24")], author={"author"}).clearing == 1


@given(st.lists(st.integers(0, 4), max_size=30))
def test_no_address_range_has_a_second_turn_before_each_had_its_first(ranges: list[int]) -> None:
    places = {f"peer {number}": f"range {place}" if place else "" for number, place in enumerate(ranges)}
    drawn = alternating(places, places)
    assert sorted(drawn) == sorted(places)
    first = {places[peer] for peer in drawn[: len(set(ranges))]}
    assert len(first) == len(set(ranges))
    # The order within a range does not change.
    for place in first:
        assert [peer for peer in drawn if places[peer] == place] == [p for p in places if places[p] == place]


def test_one_stage_under_two_heads_convicts_nobody() -> None:
    heads = [accusing("head 1", "own 1", "liar"), accusing("head 2", "own 2", "liar")]
    assert state_of(Poll.of(heads)) is AuditState.SUSPECTED
    assert state_of(Poll.of([*heads, clearing("honest")])) is AuditState.DISPUTED
    assert state_of(Poll.of([*heads, clearing("honest"), clearing("other")])) is AuditState.PASSED


def test_a_judge_that_shares_a_peer_with_the_author_cannot_clear_it() -> None:
    for author, judge in (
        ({"author", "stage"}, clearing("judge", "stage")),
        ({"author"}, clearing("judge", "author")),
        ({"author", "judge"}, clearing("judge")),
    ):
        poll = Poll.of([judge], author=author)
        assert state_of(poll) is AuditState.UNANSWERED and not is_decided(poll, left=3)


@given(opinions(), opinions())
def test_a_poll_that_is_decided_stays_as_it_is(said: list[Opinion], later: list[Opinion]) -> None:
    """Judges share nothing with each other, as is assumed of those that have not answered yet."""
    alone = [Opinion(one.judge, one.is_accusation) for one in said]
    more = [Opinion(f"later {one.judge}", one.is_accusation) for one in later]
    poll = Poll.of(alone)
    if poll.accusing and is_decided(poll, left=len(more)):
        assert state_of(Poll.of([*alone, *more])) is state_of(poll)
