"""Bodies of chats and completions: bounded strict JSON, and every field checked."""

import asyncio
import json
from typing import Any, Final

import pytest
from starlette.requests import Request

from cosine_gateway.api_errors import ApiError
from cosine_gateway.body import BODY_TIMEOUT_S, MAX_BODY_BYTES, parse_object, read_body
from cosine_gateway.chats import parse_chat
from cosine_gateway.completions import parse_completion
from cosine_gateway.fields import HARMLESS, REFUSED
from cosine_gateway.text_options import MAX_STOP_CHARACTERS, MAX_STOPS, MAX_WORDS
from cosine_gateway.text_request import MAX_CHOICES, Parse
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.request.chat import Chat
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.request import MAX_SEED, MIN_TOP_P

CHAT: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: Final[dict[str, Any]] = {"model": "m", "prompt": "hi"}
BOTH: Final = pytest.mark.parametrize(("parse", "body"), [(parse_chat, CHAT), (parse_completion, COMPLETION)])


def refusal(parse: Parse, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse(body)
    return refused.value


@BOTH
def test_what_is_not_said_or_null_has_openais_default_and_harmless_fields_change_nothing(
    parse: Parse, body: dict[str, Any]
) -> None:
    wanted = parse(body)
    assert (wanted.asked, wanted.otherwise["temperature"]) == ({}, 1.0)
    assert (wanted.n, wanted.seed) == (1, None)
    assert (wanted.is_streamed, wanted.includes_usage, wanted.is_echoed) == (False, False, False)
    names = ["n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream"]
    names += ["stream_options", "logit_bias", "bad_words", "stop_token_ids", "min_tokens", "ignore_eos"]
    assert parse(dict.fromkeys([*names, *REFUSED, "unheard_of"]) | body) == wanted
    assert parse(body | {name: [1] for name in HARMLESS}) == wanted
    # The model's name is optional.
    assert parse({name: value for name, value in body.items() if name != "model"}).model is None


@BOTH
def test_sampling_parameters_are_taken(parse: Parse, body: dict[str, Any]) -> None:
    values: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1}
    values |= {"presence_penalty": -2, "frequency_penalty": 2, "ignore_eos": True}
    assert parse(body | values).asked == values
    assert parse(body | {"top_k": -1}).asked == {"top_k": 0}
    assert parse(body | {"top_p": 0}).asked == {"top_p": MIN_TOP_P}
    assert parse(body | {"min_tokens": 3, "max_tokens": 3}).asked == {"min_tokens": 3, "max_new_tokens": 3}
    assert parse(body | {"stop_token_ids": [3.0, 4]}).asked == {"stop_token_ids": (3, 4)}
    assert parse(body | {"bad_words": ["a", " b"]}).asked == {"bad_words": ("a", " b")}


@BOTH
def test_biases_are_an_object_or_pairs_where_false_is_never(parse: Parse, body: dict[str, Any]) -> None:
    for biases in ({"5": 1, "7": -2.5}, [[5, 1], [7, -2.5]]):
        assert parse(body | {"logit_bias": biases}).asked == {"logit_bias": {5: 1.0, 7: -2.5}}
    assert parse(body | {"logit_bias": [[5, False]]}).asked == {"logit_bias": {5: -100.0}}


@BOTH
def test_numbers_may_be_floats_or_texts_and_sentinels_mean_what_other_servers_take_them_for(
    parse: Parse, body: dict[str, Any]
) -> None:
    written = {"max_tokens": 8.0, "seed": 7.0, "top_k": 4.0, "n": 2.0, "min_tokens": 3.0}
    assert parse(body | written) == parse(body | {name: int(value) for name, value in written.items()})
    as_text = {"max_tokens": "8", "seed": "7", "top_k": "4.0", "temperature": "0.7"}
    assert parse(body | as_text) == parse(body | {"max_tokens": 8, "seed": 7, "top_k": 4, "temperature": 0.7})
    assert parse(body | {"max_tokens": -1}).asked == {"max_new_tokens": MAX_NEW_TOKENS}
    assert parse(body | {"max_completion_tokens": -1}).asked == {"max_new_tokens": MAX_NEW_TOKENS}
    assert parse(body | {"seed": -1}) == parse(body)
    assert parse(body | {"stop": ""}) == parse(body | {"stop": []}) == parse(body | {"stop": [""]}) == parse(body)
    assert parse(body | {"stop": ["", "a"]}).asked == parse(body | {"stop": "a"}).asked == {"stop": ("a",)}
    assert len(parse(body | {"stop": [str(number) for number in range(MAX_STOPS)]}).asked["stop"]) == MAX_STOPS


def test_lengths() -> None:
    assert parse_chat(CHAT).otherwise["max_new_tokens"] == 1024
    assert parse_completion(COMPLETION).otherwise["max_new_tokens"] == 16
    assert parse_chat(CHAT | {"max_tokens": 7}).asked == {"max_new_tokens": 7}
    assert parse_chat(CHAT | {"max_tokens": 7, "max_completion_tokens": 9}).asked == {"max_new_tokens": 9}
    assert refusal(parse_chat, CHAT | {"max_tokens": 0}).param == "max_tokens"
    assert not parse_completion(COMPLETION | {"max_tokens": 0}).is_generating
    for many in (10**9, 1e10, 2**53 - 1, 2**63 - 1):
        assert parse_completion(COMPLETION | {"max_tokens": many}).asked == {"max_new_tokens": MAX_NEW_TOKENS}


MEANINGLESS: Final[dict[str, list[Any]]] = {
    "model": [5],
    "n": [0, True, MAX_CHOICES + 1, 1.5],
    "max_tokens": [-2, "9e0", " 9", "09", "8.5", 8.5, True],
    "max_completion_tokens": [-2, "nine"],
    "min_tokens": [-1, "-1", 1.5, MAX_NEW_TOKENS + 1],
    "presence_penalty": [2.1, "2.1"],
    "frequency_penalty": [-2.1, True],
    "logit_bias": [{"a": 1}, {"5": 101}, {"5": "x"}, {"-5": 1}, {"5": True}, [[5]], ["a"], 5, [["a", 1]]],
    "stop_token_ids": [5, ["a"], [-1], [1.5], list(range(65))],
    "bad_words": ["a", [""], [5], ["x" * (MAX_STOP_CHARACTERS + 1)], ["a"] * (MAX_WORDS + 1), ["\ud800"]],
    "ignore_eos": [1],
    "cache_salt": [5],
    "temperature": ["hot", True, -0.1, 10**400],
    "top_p": [-0.1, 1.01],
    "top_k": [-2],
    "min_p": [2],
    "repetition_penalty": [0],
    "seed": [-2, MAX_SEED + 1, 1.5, "seven"],
    "stop": [5, {"a": 1}, ["a", 5], ["a"] * (MAX_STOPS + 1), "x" * (MAX_STOP_CHARACTERS + 1), "\ud800"],
    "stream": [1],
    "stream_options": [{"include_usage": True}],
}


@BOTH
def test_a_value_that_means_nothing_or_a_field_that_nobody_knows_is_refused_by_name(
    parse: Parse, body: dict[str, Any]
) -> None:
    for name, values in MEANINGLESS.items():
        for value in values:
            refused = refusal(parse, body | {name: value})
            assert (refused.status, refused.param, refused.code) == (400, name, "invalid_value")
            assert name in refused.message
    assert refusal(parse, body | {"max_token": 5}).message.endswith("; did you mean max_tokens?")
    refused = refusal(parse, body | {"seed" + "\ud800é" * 40: 5})
    assert refused.code == "unsupported_parameter"
    assert refused.param is not None and refused.param.isascii() and len(refused.param) == 64
    json.dumps(refused.body, ensure_ascii=False).encode()


def test_messages_keep_role_content_and_name_and_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": ""},
        {"role": "any", "content": "b", "name": "c", "weight": 1},
        {"role": "user", "content": [*parts, "c", {"type": "input_text", "text": "d"}]},
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": None, "tool_call_id": "1"},
    ]
    (chat,) = parse_chat({"model": "m", "messages": messages}).prompts
    assert chat == Chat(
        [
            {"role": "system", "content": ""},
            {"role": "any", "content": "b", "name": "c"},
            {"role": "user", "content": "a\nb\nc\nd"},
            {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
            {"role": "tool", "content": "", "tool_call_id": "1"},
        ]
    )


CALL: Final = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({"continue_final_message": False}, {"continue_final_message": False}),
        ({"add_generation_prompt": True}, {"continue_final_message": False}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"template_options": {"enable_thinking": False}}),
        ({"reasoning_effort": "low"}, {"template_options": {"reasoning_effort": "low"}}),
        ({"documents": [{"title": "a"}]}, {"documents": [{"title": "a"}]}),
    ],
)
def test_a_chat_says_how_its_template_is_used(fields: dict[str, Any], expected: Any) -> None:
    (chat,) = parse_chat(CHAT | fields).prompts
    more = {"add_generation_prompt": fields.get("add_generation_prompt") is not False}
    assert chat == Chat(CHAT["messages"], **(more | expected))


def test_a_prompt_is_text_or_token_ids_or_several() -> None:
    several: list[tuple[Any, Any]] = [("a", ("a",)), (["a", "b"], ("a", "b")), ([[1, 2], [3]], ((1, 2), (3,)))]
    for prompt, expected in [*several, ([1, 2.0, 3], ((1, 2, 3),))]:
        assert parse_completion(COMPLETION | {"prompt": prompt}).prompts == expected


@pytest.mark.parametrize("prompt", [[], 5, [None], [1, None], [1.5], [-1], [True], [[1], 2], [["a"]], {}, "\ud800"])
def test_any_other_prompt_is_refused_and_chats_have_messages(prompt: Any) -> None:
    refused = refusal(parse_completion, COMPLETION | {"prompt": prompt})
    assert (refused.param, refused.code) == ("prompt", "invalid_value")
    refused = refusal(parse_chat, CHAT | {"messages": None})
    assert (refused.param, refused.message) == ("messages", "messages is required.")
    none: list[Any] = [[], {}, "hi"]
    assert {refusal(parse_chat, CHAT | {"messages": each}).param for each in none} == {"messages"}


def test_what_is_no_object_is_refused() -> None:
    short = [b"", b"{", b"[]", b"5", b"null", b"NaN", b"[NaN]", b"\xff"]
    for data in [*short, b"[" * 100_000, b'{"a": ' + b"9" * 5000]:
        with pytest.raises(ApiError) as refused:
            parse_object(data)
        assert (refused.value.status, refused.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '[1, {"b": [Infinity]}]'])
def test_numbers_that_json_does_not_have_are_refused_by_name(number: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(f'{{"n": 1, "temperature": {number}}}'.encode())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_value", "temperature")


@pytest.mark.parametrize(
    ("piece", "pause_s", "status", "code"), [(1 << 20, 0, 413, "body_too_large"), (1, 1, 408, "body_too_slow")]
)
def test_a_body_without_end_is_neither_read_to_its_end_nor_waited_for(
    piece: int, pause_s: float, status: int, code: str
) -> None:
    pieces = 0

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": b" " * piece, "more_body": True}

    async def read() -> float:
        with pytest.raises(ApiError) as refused:
            await read_body(Request({"type": "http", "method": "POST", "headers": []}, receive))
        assert (refused.value.status, refused.value.code) == (status, code)
        return asyncio.get_running_loop().time()

    took_s = run_virtual(read())
    if pause_s:
        assert took_s == pytest.approx(BODY_TIMEOUT_S)
    else:
        assert pieces == (MAX_BODY_BYTES >> 20) + 1
