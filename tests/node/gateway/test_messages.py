"""Anthropic's messages: what their bodies ask for, and the blocks, events and errors that are written."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest
from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.messages.blocks import call_input
from cosine_node.gateway.messages.reply import message_writer
from cosine_node.gateway.messages.request import parse_message
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from tests.node.gateway.gateways import MODEL, PROMPT, SLOW, Gateway, Reply, asked, text_of, with_gateway
from tests.node.gateway.written import ALL_PARTS, Sent, reply_events, written

LOOK_UP: Final[dict[str, Any]] = {
    "name": "look_up",
    "description": "Look a city up.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HI: Final[dict[str, Any]] = {"max_tokens": 30, "messages": [{"role": "user", "content": "hi"}]}
EVENT: Final[TypeAdapter[Any]] = TypeAdapter(RawMessageStreamEvent)
TOKENS: Final = 12
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


def chat_of(**body: Any) -> Chat:
    """The chat that a body asks for."""
    (chat,) = parse_message({**HI, **body}).prompts
    assert isinstance(chat, Chat)
    return chat


def answer(parts: Sequence[Part], *, body: dict[str, Any] | None = None, **changes: Any) -> Any:
    """The body of a whole message, which anthropic's own type accepts."""
    given = {**HI, **(body or {})}
    make = partial(message_writer, given, parse_message(given))
    whole = json.loads(written(make, reply_events(parts, **changes)).messages[1]["body"])
    Message.model_validate(whole, strict=True)
    return whole


def events_of(parts: Sequence[Part], *, body: dict[str, Any] | None = None, **changes: Any) -> list[Any]:
    """The events of a streamed message, each of which anthropic's own types accept."""
    given = {**HI, "stream": True, **(body or {})}
    make = partial(message_writer, given, parse_message(given))
    named = written(make, reply_events(parts, **changes)).events
    assert [name for name, _ in named] == [event["type"] for _, event in named]
    for name, event in named:
        if name != "ping":
            EVENT.validate_python(event)
    return [event for _, event in named]


def error_of(reply: Reply) -> tuple[int, str, str]:
    """The status, the type and the message of an answer that is an error."""
    # The package does not know it; the API's documentation does.
    if reply.status != 413:
        ErrorResponse.model_validate(reply.json)
    assert reply.json["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    return reply.status, reply.json["error"]["type"], reply.json["error"]["message"]


def test_blocks_are_turns_that_alternate() -> None:
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Where?", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Say it."},
            ],
        },
        {"role": "system", "content": "There are agents."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "gAAA"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "t2", "name": "stop", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "on the Rhine"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                {"type": "text", "text": "Well?"},
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2.3;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    assert chat_of(system=system, messages=messages).messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Where?\nSay it.\nThere are agents."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Köln"}'}},
                {"id": "t2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "look_up", "content": "on the Rhine"},
        {"role": "tool", "tool_call_id": "t2", "name": "stop", "content": "Error: no"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "It is"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "is_parallel"),
    [
        (None, ToolChoice.AUTO, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice.AUTO, False),
        ({"type": "any"}, ToolChoice.REQUIRED, True),
        ({"type": "none"}, ToolChoice.NONE, True),
        ({"type": "tool", "name": "look_up"}, NamedTool("look_up"), True),
    ],
)
def test_tools_are_functions_of_a_chat(choice: Any, expected: Any, is_parallel: bool) -> None:
    chat = chat_of(tools=[LOOK_UP | {"type": "custom", "strict": True}], tool_choice=choice)
    (tool,) = chat.tools or ()
    parameters = LOOK_UP["input_schema"]
    assert tool == {
        "type": "function",
        "function": {"name": "look_up", "description": "Look a city up.", "parameters": parameters},
    }
    assert (chat.tool_choice, chat.calls_in_parallel) == (expected, is_parallel)


@pytest.mark.parametrize(
    ("body", "wishes"),
    [
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking_is_a_wish_that_a_template_need_not_read(body: dict[str, Any], wishes: dict[str, Any]) -> None:
    assert parse_message(HI | body).wishes == wishes
    assert chat_of(**body).template_options == {}


def test_lengths_samplers_stops_and_schemas_are_options_of_the_text() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "schema": schema}
    body = {"temperature": 0.5, "top_k": 4, "stop_sequences": ["a", "b"], "output_config": {"format": form}}
    assert dict(parse_message(HI | body).asked) == {
        "max_new_tokens": 30,
        "temperature": 0.5,
        "top_k": 4,
        "stop": ("a", "b"),
        "schema": json.dumps(schema),
    }
    assert "schema" in parse_message(HI | {"output_format": form}).asked


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [LOOK_UP, LOOK_UP]}, "tools[1].name"),
        (
            {
                "tools": [LOOK_UP],
                "tool_choice": {"type": "any"},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_config.format",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"output_config": {"effort": []}}, "output_config.effort"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"stop_sequences": [7]}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_message(HI | body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert param.partition("[")[0].partition(".")[0] in refused.value.message


def test_what_claude_code_sends_with_every_request_is_taken() -> None:
    body = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        "stream": True,
    }
    assert parse_message(HI | body).is_streamed


def test_a_whole_message_has_a_block_for_everything_in_its_order() -> None:
    body = answer(ALL_PARTS, cached_tokens=2, reasoning_tokens=3)
    assert body["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": "r"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "call_a", "name": "look_up", "input": {"city": "Köln"}},
        {"type": "tool_use", "id": "call_b", "name": "stop", "input": {}},
    ]
    assert (body["id"], body["role"], body["stop_reason"]) == ("msg_r", "assistant", "tool_use")
    assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (3, 2)
    assert body["usage"]["output_tokens"] == 21
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 3}
    assert body["metrics"]["speculative_decoding"]["seed"] == 7


@pytest.mark.parametrize(
    ("changes", "reason", "sequence"),
    [
        ({"finish_reason": "eos"}, "end_turn", None),
        ({"finish_reason": "stop", "stop_text": "\n\n"}, "stop_sequence", "\n\n"),
        ({"finish_reason": "length", "tokens": 30}, "max_tokens", None),
        ({"finish_reason": "length", "tokens": 29}, "model_context_window_exceeded", None),
    ],
)
def test_a_message_says_why_it_ended(changes: dict[str, Any], reason: str, sequence: str | None) -> None:
    body = answer([Content("a")], **changes)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    assert events_of([Content("a")], **changes)[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_thinking_that_is_not_shown_is_a_block_without_text() -> None:
    hidden = {"thinking": {"type": "adaptive", "display": "omitted"}}
    assert answer(ALL_PARTS[:3], body=hidden)["content"] == [
        {"type": "thinking", "thinking": "", "signature": "r"},
        {"type": "text", "text": "I "},
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"input": [1]}), ('{"a": ', {"input": '{"a": '})],
)
def test_the_input_of_a_call_is_an_object_whatever_the_model_wrote(arguments: str, expected: Any) -> None:
    assert call_input(arguments) == expected


def test_the_events_of_a_stream_come_in_anthropics_order_and_add_up_to_the_message() -> None:
    events = events_of(ALL_PARTS)
    deltas = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}
    told = [event["delta"].get("type", "") if "delta" in event else "" for event in events]
    assert [(event["type"], kind) for event, kind in zip(events, told, strict=True)] == [
        *(("message_start", ""), ("ping", "")),
        *(("content_block_start", ""), *[("content_block_delta", "thinking_delta")] * 2),
        *(("content_block_delta", "signature_delta"), ("content_block_stop", "")),
        *(("content_block_start", ""), *[("content_block_delta", "text_delta")] * 2, ("content_block_stop", "")),
        *(("content_block_start", ""), *[("content_block_delta", "input_json_delta")] * 2),
        *(("content_block_stop", ""), ("content_block_start", ""), ("content_block_delta", "input_json_delta")),
        *(("content_block_stop", ""), ("message_delta", ""), ("message_stop", "")),
    ]
    texts = ["", "", "", ""]
    for event in events:
        if event["type"] == "content_block_delta" and event["delta"]["type"] in deltas:
            texts[event["index"]] += event["delta"][deltas[event["delta"]["type"]]]
    assert texts == ["let me see", "I look", '{"city": "Köln"}', "{}"]
    assert events[0]["message"]["usage"] == {"input_tokens": 3, "output_tokens": 0}
    assert events[-2]["usage"] == answer(ALL_PARTS)["usage"]


def test_an_error_within_a_stream_is_its_last_event() -> None:
    async def run() -> Sent:
        sent = Sent()
        given = HI | {"stream": True}
        writer = message_writer(
            given, parse_message(given), request_id="r", created_s=9, model="m", seed=7, send=sent
        )
        with pytest.raises(ApiError):
            await writer.fail(internal())
        for event in reply_events([Reasoning("I"), CallBegun(0, "c", "f"), CallArguments(0, "{}")])[:2]:
            await writer.take(event)
        await writer.fail(internal())
        return sent

    name, error = asyncio.run(run()).events[-1]
    assert (name, error["error"]["type"], error["request_id"]) == ("error", "api_error", "r")


def message(gateway: Gateway, **options: Any) -> Any:
    """Ask for a greedy message."""
    given = {name: options.pop(name) for name in ("hang_up", "headers") if name in options}
    body = {"max_tokens": TOKENS, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, **options}
    return gateway.post("/v1/messages", body, **given)


def test_a_message_is_the_targets_text_and_tells_which_sequence_ended_it() -> None:
    async def use(gateway: Gateway) -> None:
        whole = (await message(gateway, model=MODEL)).json
        assert whole["content"] == [{"type": "text", "text": GREEDY}]
        assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", TOKENS)
        stop = GREEDY[6:8]
        cut = (await message(gateway, stop_sequences=["never", stop])).json
        assert cut["content"] == [{"type": "text", "text": GREEDY[: GREEDY.index(stop)]}]
        assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
        begun = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": GREEDY[:3]}]
        rest = (await message(gateway, messages=begun)).json
        assert rest["content"][0]["text"] == text_of(PROMPT + GREEDY[:3], tokens=TOKENS)

    with_gateway(use)


def test_the_tokens_of_a_prompt_are_counted() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    assert asked("POST", "/v1/messages/count_tokens", body).json == {"input_tokens": len(PROMPT)}
    refused = asked("POST", "/v1/messages/count_tokens", body | {"messages": []})
    assert error_of(refused)[:2] == (400, "invalid_request_error")


def test_errors_have_anthropics_shape_on_all_its_paths() -> None:
    async def use(gateway: Gateway) -> None:
        key = {"x-api-key": "sesame"}
        assert (await message(gateway, headers=key)).status == 200
        assert error_of(await message(gateway))[:2] == (401, "authentication_error")
        assert error_of(await message(gateway, headers=key, model="claude-x"))[:2] == (404, "not_found_error")
        assert error_of(await message(gateway, headers=key, temperature=-1))[:2] == (400, "invalid_request_error")
        long = [{"role": "user", "content": PROMPT * 600}]
        assert error_of(await message(gateway, headers=key, messages=long, stream=True))[0] == 400
        assert error_of(await gateway.get("/v1/messages", headers=key))[:2] == (405, "invalid_request_error")
        assert error_of(await gateway.get("/v1/messages/batches", headers=key))[:2] == (404, "not_found_error")
        large = await gateway.post("/v1/messages", b" " * (5 << 20), headers=key)
        assert error_of(large)[:2] == (413, "request_too_large")

    with_gateway(use, api_keys=("sesame",))


def test_who_finds_no_place_or_no_verifier_is_told_so() -> None:
    async def use(gateway: Gateway) -> None:
        replies = await asyncio.gather(*(message(gateway) for _ in range(6)))
        refused = [error_of(reply) for reply in replies if reply.status != 200]
        assert [each[:2] for each in refused] == [(529, "overloaded_error")]

    with_gateway(use, max_requests=1)


def test_a_client_that_hangs_up_ends_its_generation() -> None:
    async def use(gateway: Gateway) -> None:
        gone = asyncio.Event()
        asking = asyncio.ensure_future(message(gateway, stream=True, max_tokens=400, hang_up=gone))
        await asyncio.sleep(3)
        gone.set()
        reply = await asking
        assert b"text_delta" in reply.body and not reply.is_complete
        assert gateway.told[-1]["error"] == "the client hung up"

    with_gateway(use, curve=SLOW)
