"""Options of a generation: what is given wins, what means nothing is named; and the seeds of choices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.options import DEFAULTS, ClientOptions, GenerationOptions, choice_seed, merge_options
from cosine_protocol.errors import UsageError
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


def merged(**given: Any) -> dict[str, Any]:
    return dict(merge_options(DEFAULTS, given, GenerationOptions))


def test_what_is_given_wins_and_none_is_as_good_as_absent() -> None:
    client = merge_options(DEFAULTS, {"temperature": 0.5, "trust": ["a"], "target": "other"}, ClientOptions)
    options = merge_options(client, {"temperature": 0.8, "trust": None, "seed": None}, GenerationOptions)
    assert (options["temperature"], options["trust"], options["target"]) == (0.8, ["a"], "other")
    assert "seed" not in options
    assert merge_options(DEFAULTS, {}, ClientOptions) == DEFAULTS


def test_one_stop_is_one_text() -> None:
    assert merged(stop="END")["stop"] == ("END",)
    assert merged(stop=["a", "b"])["stop"] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", "many"),
        ("max_new_tokens", 1.5),
        ("stop", 3),
        ("stop", [3]),
        ("eos", 2),
        ("eos", [-1]),
        ("eos", [0] * 65),
        ("strategy", 1),
        ("dtype", 32),
        ("max_drafters", -1),
        ("max_drafters", "2"),
        ("trust", "12D3KooW"),
        ("verifier", ["12D3KooW"]),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("timeout_s", "60"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be [^\n]*, not [^\n]*\.$"):
        merged(**{name: value})


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no option 'max_tokens'; there is max_new_tokens"):
        merged(max_tokens=3)
    with pytest.raises(UsageError, match="no option 'xyz'; there is max_new_tokens, temperature,"):
        merged(xyz=3)
    with pytest.raises(UsageError, match="no option 'network'"):
        merged(network="main")
