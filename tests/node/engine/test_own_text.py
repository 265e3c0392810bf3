"""What a model was asked and said: texts share what they have in common, and nothing is fed twice without need."""

from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.engine.retokenized import HELD_TOKENS, OwnText
from cosine_node.engine.text_alignment import PredictedToken


def asked(own: OwnText, *texts: list[int]) -> Row:
    for text in texts:
        assert own.ask(text)
    row = own.row(wants_nll=False)
    assert row is not None
    return row


def feed(own: OwnText, row: Row, *tokens: int) -> None:
    own.absorb(row, [Choice(token, 1.0, ((token, 0.5),)) for token in tokens])


def test_a_text_is_fed_whole_and_then_token_by_token() -> None:
    own = OwnText(3)
    assert own.is_empty
    first = asked(own, [5, 6, 7])
    assert (first.sequence, first.tokens, first.parents) == (3, (5, 6, 7), (PREFIX, *first.nodes[:2]))
    assert (first.scored_from, first.candidates) == (2, 1)
    feed(own, first, 8)
    second = asked(own, [5, 6, 7])
    assert (second.tokens, second.parents) == ((8,), first.nodes[2:])
    feed(own, second, 9)
    assert own.continuation([5, 6, 7]) == [PredictedToken(8, 0.5), PredictedToken(9, 0.5)]
    assert own.continuation([5, 6, 7, 8]) == [PredictedToken(9, 0.5)]
    assert own.continuation([5, 6]) == own.continuation([5, 7]) == []
    assert own.node_tokens == 4


def test_texts_of_one_sequence_share_their_beginning() -> None:
    own = OwnText(0)
    row = asked(own, [1, 2, 3], [1, 2, 4], [1])
    assert row.tokens == (1, 2, 3, 4)
    assert row.scored_from == 0
    assert row.parents == (PREFIX, row.nodes[0], row.nodes[1], row.nodes[1])
    feed(own, row, 2, 3, 9, 9)
    assert own.continuation([1]) == [PredictedToken(2, 0.5), PredictedToken(3, 0.5), PredictedToken(9, 0.5)]


def test_likelihood_is_asked_of_a_chain_only() -> None:
    own = OwnText(0)
    own.ask([1, 2, 3])
    row = own.row(wants_nll=True)
    assert row is not None and row.wants_nll
    own.ask([1, 4])
    row = own.row(wants_nll=True)
    assert row is not None and not row.wants_nll


def test_what_was_fed_unasked_is_dropped_and_fed_anew() -> None:
    own = OwnText(0)
    row = asked(own, [1, 2, 3])
    feed(own, row, 4)
    again = asked(own, [1, 2])
    assert own.take_dropped() == row.nodes[1:2]
    assert own.take_dropped() == ()
    assert (again.tokens, again.parents) == ((2,), row.nodes[:1])
    assert own.continuation([1, 2, 3]) == []


def test_a_text_with_nothing_to_follow_is_not_asked_twice() -> None:
    own = OwnText(0)
    own.absorb(asked(own, [1]), [Choice(0, 0.0)])
    assert own.continuation([1]) == []
    assert not own.ask([1])
    assert own.row(wants_nll=False) is None


def test_what_was_asked_and_not_fed_is_forgotten() -> None:
    own = OwnText(0)
    feed(own, asked(own, [1]), 2)
    own.ask([1, 5, 6])
    own.withdraw()
    assert own.row(wants_nll=False) is None
    assert (own.node_tokens, own.continuation([1])) == (1, [PredictedToken(2, 0.5)])


def test_certain_text_is_kept_but_its_end_and_other_branches_go() -> None:
    own = OwnText(0)
    text = list(range(HELD_TOKENS + 3))
    main = asked(own, text)
    feed(own, main, 99)
    feed(own, asked(own, [0, 50]), 51)
    assert own.settle(text) == main.nodes[:3]
    assert own.tokens.tolist() == [0, 1, 2]
    assert own.node_tokens == HELD_TOKENS
    assert own.continuation(text) == [PredictedToken(99, 0.5)]
    assert own.settle(text) == ()
    assert own.leads_to(text)
    assert not own.leads_to([0, 1, 2])
    assert not own.leads_to([0, 50, 2, 3])
    row = asked(own, [0, 1, 2, 70])
    assert (row.tokens, row.parents) == ((70,), (PREFIX,))
