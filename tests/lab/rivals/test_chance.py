"""The numbers a strategy may draw: uniform, in bounds, the same for the same request."""

from collections import Counter

from cosine_lab.rivals.chance import RequestChance


def test_one_request_is_one_series_and_another_is_another() -> None:
    first, again, other = RequestChance(bytes(16)), RequestChance(bytes(16)), RequestChance(b"\1" * 16)
    series = [first.random() for _ in range(8)]
    assert series == [again.random() for _ in range(8)]
    assert series != [other.random() for _ in range(8)]


def test_numbers_are_spread_over_their_range() -> None:
    chance = RequestChance(b"spread over range")
    shares = [chance.random() for _ in range(4000)]
    assert all(0.0 <= share < 1.0 for share in shares)
    assert abs(sum(shares) / len(shares) - 0.5) < 0.02
    counts = Counter(chance.randrange(5) for _ in range(4000))
    assert set(counts) == set(range(5))
    assert min(counts.values()) > 700
