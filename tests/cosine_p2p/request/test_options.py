"""Options of a generation: what is given wins, what means nothing is named; and the seeds of choices."""

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
    shares_feedback,
    window_of,
)
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_PROMPT_TOKENS
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
    assert (options["temperature"], options["trust"], options["target"]) == (0.8, ("a",), "other")
    assert "seed" not in options
    assert merge_options(DEFAULTS, {}, ClientOptions) == DEFAULTS


WHOLE = "max_new_tokens must be a whole number of at least 1, not"
EOS = "eos must be a list of at most 64 token ids from 0 to 2147483647, not"
REFUSED = [
    ("max_new_tokens", 0, f"{WHOLE} 0."),
    ("max_new_tokens", True, f"{WHOLE} True."),
    ("max_new_tokens", float("nan"), f"{WHOLE} nan."),
    ("max_new_tokens", b"10", f"{WHOLE} b'10'."),
    ("max_drafters", -1, "max_drafters must be a whole number of at least 0, not -1."),
    ("prompt_window_tokens", -1, "prompt_window_tokens must be a whole number of at least 0, not -1."),
    ("swarm", 7, "swarm must be the path of a swarm file, not 7."),
    ("identity", "", "identity must be the path of a key file, not ''."),
    ("deny", "12D3", "deny must be a list of peer ids or files of them, not '12D3'; write ['12D3']."),
    ("share_feedback", "no", "share_feedback must be True or False, not 'no'."),
    ("listen", "no", "listen must be True or False, not 'no'."),
    ("warm_spare", "no", "warm_spare must be True or False, not 'no'."),
    ("audit", 1.1, "audit must be a number from 0 to 1, not 1.1."),
    ("coordination", "nobody", "coordination must be 'auto', 'client' or 'verifier', not 'nobody'."),
    ("presence_penalty", 2.5, "presence_penalty must lie between -2 and 2, not 2.5."),
    ("frequency_penalty", "1", "frequency_penalty must lie between -2 and 2, not '1'."),
    (
        "logit_bias",
        {5: 101},
        "logit_bias must be a mapping of at most 300 token ids to numbers from -100 to 100, not {5: 101}.",
    ),
    ("bad_words", "bad", "bad_words must be a list of texts, not 'bad'; write ['bad']."),
    ("schema", [1], "schema must be a JSON schema: an object, or its text, not [1]."),
    (
        "schema",
        "[" * 100_000,
        "schema must be a JSON schema: an object, or its text, not '[[[[[[[[[[[[...[[[[[[[[[[[[['.",
    ),
    ("logprobs", 21, "logprobs must be a whole number from 0 to 20, not 21."),
    ("prompt_logprobs", -1, "prompt_logprobs must be a whole number from 0 to 20, not -1."),
    ("prediction", b"abc", "prediction must be a text, or token ids, not b'abc'."),
    ("regex", "", "regex must be a regular expression, not ''."),
    ("grammar", 5, "grammar must be a Lark grammar, not 5."),
    ("min_tokens", -1, "min_tokens must be a whole number from 0 to 131072, not -1."),
    (
        "stop_token_ids",
        ["5"],
        "stop_token_ids must be a list of at most 64 token ids from 0 to 2147483647, not ['5'].",
    ),
    ("ignore_eos", "no", "ignore_eos must be True or False, not 'no'."),
    ("temperature", -1, "temperature must lie between 0 and 1,000,000, not -1."),
    ("temperature", True, "temperature must lie between 0 and 1,000,000, not True."),
    ("top_p", 1.1, "top_p must lie between 1e-09 and 1, not 1.1."),
    ("top_k", -1, "top_k must be a whole number from 0 (off) to 2147483647, not -1."),
    ("min_p", float("nan"), "min_p must lie between 0 and 1, not nan."),
    ("repetition_penalty", b"1", "repetition_penalty must lie between 1e-06 and 1e+06, not b'1'."),
    ("generation_config", "vllm", "generation_config must be 'auto' or 'none', not 'vllm'."),
    ("seed", 1 << 64, "seed must be a whole number from 0 to 2**64 - 1, not 18446744073709551616."),
    ("stop", 3, "stop must be a text or a list of texts, not 3."),
    ("eos", [-1], f"{EOS} [-1]."),
    ("eos", "</s>", f"{EOS} '</s>'."),
    ("strategy", 1, "strategy must be the name of a strategy, not 1."),
    ("dtype", 32, "dtype must be the name of a data type, such as 'float32', not 32."),
    ("trust", "12D3KooW", "trust must be a list of peer ids, not '12D3KooW'; write ['12D3KooW']."),
    ("verifier", ["12D3"], "verifier must be a peer id, not ['12D3']; give one, not several."),
    ("timeout_s", 0, "timeout_s must be a number of seconds above 0, not 0."),
    ("timeout_s", float("nan"), "timeout_s must be a number of seconds above 0, not nan."),
    (
        "timeout_s",
        10**400,
        "timeout_s must be a number of seconds above 0, not 100000000000000000...0000000000000000000.",
    ),
    ("target", 7, "target must be the name of a target, not 7."),
    ("network", ["main"], "network must be the name of a network, not ['main']; give one, not several."),
    ("transport", 1, "transport must be 'full' or 'light', not 1."),
    ("observer", len, f"observer must be an object with `observe` and `observe_abandoned`, not {len!r}."),
]


@pytest.mark.parametrize(("name", "value", "sentence"), REFUSED)
def test_a_value_that_means_nothing_is_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        merge_options(DEFAULTS, {name: value}, ClientOptions)
    assert str(refused.value) == sentence


def test_every_option_is_refused_somewhere() -> None:
    assert {name for name, _, _ in REFUSED} == set(ClientOptions.__annotations__)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_declaration_keeps_its_own_promises(name: str) -> None:
    option = OPTIONS[name]
    assert option.help.endswith(".")
    if option.default is not None:
        assert read_option(name, option.default) == option.default
        assert (name in TEXT_DEFAULTS) is option.yields is not (name in DEFAULTS)
    for choice in option.kind.choices:
        assert read_option(name, choice) == choice
    for bound in {option.kind.low, option.kind.high} - {None, 0}:
        assert read_option(name, option.kind.type(bound)) == bound


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"trust": ["somebody"]}, False),
        ({"swarm": "friends.swarm"}, True),
        ({"swarm": "friends.swarm", "share_feedback": False}, False),
        ({"share_feedback": True}, True),
    ],
)
def test_feedback_is_shared_as_the_user_says_else_in_a_private_swarm(
    options: dict[str, Any], expected: bool
) -> None:
    assert shares_feedback(merge_options(DEFAULTS, options, ClientOptions)) is expected


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
        ({"prompt_window_tokens": None}, USUAL_WINDOW_TOKENS),
        ({"trust": ["somebody"]}, None),
        ({"swarm": "friends.swarm"}, None),
        ({"prompt_window_tokens": 0}, None),
        ({"prompt_window_tokens": 40, "trust": ["somebody"], "swarm": "friends.swarm"}, 40),
        ({"prompt_window_tokens": 10**9}, MAX_PROMPT_TOKENS),
    ],
)
def test_it_is_as_the_user_says_else_as_the_user_knows_the_drafters(
    options: dict[str, Any], expected: int | None
) -> None:
    assert window_of(merge_options(DEFAULTS, options, ClientOptions)) == expected
