from cosine_node.training.answers import most_frequent
from tests.node.training.samples import answer


def test_frequent_tokens_are_known_in_rising_order() -> None:
    answers = [answer((40, 9, 40, 9, 40)), answer((9, 77), prompt=(40,))]
    assert most_frequent(answers, tokens=2, shares={}).target_ids == (9, 40)


def test_tokens_that_were_likely_count_by_their_probability() -> None:
    likely = [[(9, 0.6), (50, 0.4)], [(9, 0.5), (60, 0.001)]]
    assert most_frequent([answer((9, 9), prompt=(), likely=likely)], tokens=2, shares={}).target_ids == (9, 50)


def test_no_token_is_known_that_was_never_seen() -> None:
    assert most_frequent([answer((4, 5), prompt=(1,))], tokens=100, shares={}).target_ids == (1, 4, 5)


def test_domains_count_by_their_shares() -> None:
    answers = [answer((4, 4, 4, 5), prompt=(), domain="a"), answer((6, 7), prompt=(), domain="b")]
    for shares, known in (({"a": 1.0}, (4, 5)), ({"a": 0.1, "b": 0.9}, (6, 7)), ({"a": 0.6, "b": 0.4}, (4, 6))):
        assert most_frequent(answers, tokens=2, shares=shares).target_ids == known
