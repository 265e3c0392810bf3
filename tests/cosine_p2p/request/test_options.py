"""Tests of options and of the seeds of choices."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.request.options import (
    DEFAULTS,
    OPTIONS,
    TEXT_DEFAULTS,
    USUAL_WINDOW_TOKENS,
    ClientOptions,
    GenerationOptions,
    choice_seed,
    merge_options,
    read_option,
    window_of,
)
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_PROMPT_TOKENS
from cosine_protocol.request import MAX_SEED

SEEDS = st.integers(0, MAX_SEED)


@given(SEEDS, st.integers(1, 64))
def test_every_seed_is_a_valid_one_and_no_other_choices(seed: int, index: int) -> None:
    assert 0 <= choice_seed(seed, index) <= MAX_SEED
    assert choice_seed(seed, 0) == seed
    assert len({choice_seed(seed, each) for each in range(65)}) == 65


def test_golden_seeds() -> None:
    assert [choice_seed(7, index) for index in (1, 2)] == [7644908369770446486, 241622372341695739]
    assert choice_seed(MAX_SEED, 63) == 16221517464904421082


def merged(**given: Any) -> dict[str, Any]:
    return dict(merge_options(DEFAULTS, given, GenerationOptions))


def test_what_is_given_wins_and_none_is_as_good_as_absent() -> None:
    client = merge_options(DEFAULTS, {"temperature": 0.5, "trust": ["a"], "target": "other"}, ClientOptions)
    options = merge_options(client, {"temperature": 0.8, "trust": None, "seed": None}, GenerationOptions)
    assert (options["temperature"], options["trust"], options["target"]) == (0.8, ("a",), "other")
    assert "seed" not in options
    assert merge_options(DEFAULTS, {}, ClientOptions) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("max_new_tokens", True, "max_new_tokens must be a whole number of at least 1, not True."),
        ("deny", "12D3", "deny must be a list of peer ids or files of them, not '12D3'; write ['12D3']."),
        ("coordination", "nobody", "coordination must be 'auto', 'client' or 'verifier', not 'nobody'."),
        (
            "schema",
            "[" * 100_000,
            "schema must be a JSON schema: an object, or its text, not '[[[[[[[[[[[[...[[[[[[[[[[[[['.",
        ),
        ("min_p", float("nan"), "min_p must lie between 0 and 1, not nan."),
        ("top_p", 1.1, "top_p must lie between 1e-09 and 1, not 1.1."),
        ("regex", "", "regex must be a regular expression, not ''."),
        ("eos", "</s>", "eos must be a list of at most 64 token ids from 0 to 2147483647, not '</s>'."),
        ("verifier", ["12D3"], "verifier must be a peer id, not ['12D3']; give one, not several."),
        ("timeout_s", 0, "timeout_s must be a number of seconds above 0, not 0."),
        ("observer", len, f"observer must be an object with `observe` and `observe_abandoned`, not {len!r}."),
    ],
)
def test_a_value_that_means_nothing_is_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        merge_options(DEFAULTS, {name: value}, ClientOptions)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", OPTIONS)
def test_a_declaration_keeps_its_own_promises(name: str) -> None:
    option = OPTIONS[name]
    for outside in (object(), -1e18, *(() if option.kind.high is None else (2 * option.kind.high + 1,))):
        with pytest.raises(UsageError, match=f"^{name} must "):
            read_option(name, outside)
    if option.default is not None:
        assert read_option(name, option.default) == option.default
        assert (name in TEXT_DEFAULTS) is option.yields is not (name in DEFAULTS)
    for choice in option.kind.choices:
        assert read_option(name, choice) == choice
    for bound in {option.kind.low, option.kind.high} - {None, 0}:
        assert read_option(name, option.kind.type(bound)) == bound


def test_numbers_of_other_libraries_become_plain() -> None:
    given = {
        "max_new_tokens": np.int64(3),
        "temperature": np.float32(0.5),
        "seed": np.uint8(7),
        "top_k": np.int32(5),
    }
    found = merged(**given, eos=np.array([1, 2]))
    assert {name: type(found[name]) for name in given} == dict(zip(given, (int, float, int, int), strict=True))
    assert found["eos"] == (1, 2)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no option 'max_tokens'; there is max_new_tokens"):
        merged(max_tokens=3)
    with pytest.raises(UsageError, match="no option 'xyz'; there is max_new_tokens, temperature,"):
        merged(xyz=3)
    with pytest.raises(UsageError, match="no option 'network' of a single generation; give it to the client"):
        merged(network="main")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, USUAL_WINDOW_TOKENS),
        ({"trust": ["somebody"]}, None),
        ({"swarm": "friends.swarm"}, None),
        ({"prompt_window_tokens": 0}, None),
        ({"prompt_window_tokens": 40, "trust": ["somebody"], "swarm": "friends.swarm"}, 40),
        ({"prompt_window_tokens": 10**9}, MAX_PROMPT_TOKENS),
    ],
)
def test_the_window_follows_the_user_else_the_known_drafters(options: dict[str, Any], expected: int | None) -> None:
    assert window_of(merge_options(DEFAULTS, options, ClientOptions)) == expected
