"""Draft sizes of a batch: the best there are, within what fits."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals.batch_objective import BatchDirector, draft_sizes


def draft_s(requests: int, longest: int) -> float:
    return 0.005 * longest


def verify_s(requests: int, total: int) -> float:
    return 0.06 + 0.003 * max(0, requests + total - 4)


def cost(acceptances: list[float], sizes: tuple[int, ...]) -> float:
    committed = sum(1 + sum(a**i for i in range(1, g + 1)) for a, g in zip(acceptances, sizes, strict=True))
    spent_s = draft_s(len(sizes), max(sizes)) + verify_s(len(sizes), sum(sizes))
    return spent_s / committed


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(0, 16),
)
def test_no_other_sizes_cost_less(requests: list[tuple[float, int]], most: int) -> None:
    acceptances, wanted = [a for a, _ in requests], [g for _, g in requests]
    sizes = draft_sizes(acceptances, wanted, draft_s=draft_s, verify_s=verify_s, most=most)
    others = [s for s in product(*(range(g + 1) for g in wanted)) if sum(s) <= most]
    assert sizes in others
    best = min(cost(acceptances, other) for other in others)
    assert cost(acceptances, sizes) <= best * (1 + 1e-9)


def test_where_not_everyone_can_draft_those_who_gain_most_do() -> None:
    sizes = draft_sizes([0.8, 0.9, 0.5], [1, 1, 1], draft_s=draft_s, verify_s=verify_s, most=2)
    assert sizes == (1, 1, 0)


def test_nobody_drafts_where_a_node_costs_more_than_it_brings() -> None:
    sizes = draft_sizes([0.9] * 3, [4] * 3, draft_s=draft_s, verify_s=lambda b, total: 0.01 + 0.05 * total, most=8)
    assert sizes == (0, 0, 0)


def test_who_is_accepted_more_drafts_more() -> None:
    good, bad = draft_sizes([0.95, 0.3], [8, 8], draft_s=draft_s, verify_s=verify_s, most=16)
    assert good > bad


def test_a_director_shares_out_what_fits_and_forgets_requests_that_are_over() -> None:
    director = BatchDirector(draft_s=draft_s, verify_s=lambda requests, total: 0.06, most=8)
    alone = director.size(b"a", wanted=8, acceptance=0.95, now_s=0.0)
    director.size(b"b", wanted=8, acceptance=0.95, now_s=0.1)
    shared = director.size(b"a", wanted=8, acceptance=0.95, now_s=0.2)
    assert shared < alone
    assert shared + director.size(b"b", wanted=8, acceptance=0.95, now_s=0.3) <= 8
    assert director.size(b"a", wanted=8, acceptance=0.95, now_s=5.0) == alone
