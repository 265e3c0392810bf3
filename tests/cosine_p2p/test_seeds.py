"""Seeds of choices: a fixed function that anybody can compute."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.seeds import choice_seed
from cosine_protocol.request import MAX_SEED

SEEDS = st.integers(0, MAX_SEED)


@given(SEEDS)
def test_the_first_choice_has_the_requests_own_seed(seed: int) -> None:
    assert choice_seed(seed, 0) == seed


@given(SEEDS, st.integers(1, 64))
def test_every_seed_is_a_valid_one_and_no_other_choices(seed: int, index: int) -> None:
    assert 0 <= choice_seed(seed, index) <= MAX_SEED
    assert len({choice_seed(seed, each) for each in range(65)}) == 65


def test_golden_seeds() -> None:
    """These never change: texts that were generated with them must be found again."""
    assert [choice_seed(7, index) for index in (1, 2)] == [7644908369770446486, 241622372341695739]
    assert choice_seed(MAX_SEED, 63) == 16221517464904421082
