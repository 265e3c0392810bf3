"""Pages that follow each other are taken where they can, and every free page is found."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.kv_pool import FreePages, halving


def test_halving_visits_every_place_once_where_there_are_a_power_of_two() -> None:
    assert [halving(number, 8) for number in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert halving(0, 1) == 0
    assert all(0 <= halving(number, 100) < 100 for number in range(100))


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(-2, 40)), max_size=200))
def test_what_is_taken_was_free_and_what_is_put_back_is_found_again(
    pages: int, steps: list[tuple[bool, int]]
) -> None:
    free, taken = FreePages(pages), set[int]()
    for is_taking, number in steps:
        if is_taking and free.count:
            page = free.take(number)
            assert page not in taken
            assert page == number or number in taken or not 0 <= number < pages
            taken.add(page)
        elif taken:
            page = sorted(taken)[number % len(taken)]
            taken.remove(page)
            free.put(page)
        assert free.count == pages - len(taken)
        assert all(free.is_free(page) == (page not in taken) for page in range(pages))
