"""OpenAI's responses: what their bodies ask for, and the items and events that are written."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.choices import ChoicePart
from cosine_node.gateway.responses.kept_reasoning import kept, kept_text
from cosine_node.gateway.responses.reply import response_writer
from cosine_node.gateway.responses.request import DEFAULTS, parse_response
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.request.logprobs import LikelyToken, TokenLogprob
from tests.node.gateway.gateways import MODEL, PROMPT, SLOW, Gateway, asked, text_of, with_gateway
from tests.node.gateway.written import ALL_PARTS, CHOICE, Sent, reply_events, written

LOOK_UP: Final = {
    "type": "function",
    "name": "look_up",
    "description": "Look a city up.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
PATCH: Final = {
    "type": "custom",
    "name": "patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS: Final = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "ask", "parameters": {"type": "object"}, "strict": False}],
}
EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)
TOKENS: Final = 12


def chat_of(**body: Any) -> Chat:
    """The chat that a body asks for."""
    (chat,) = parse_response({"input": "hi", **body}).prompts
    assert isinstance(chat, Chat)
    return chat


def refusal_of(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse_response({"input": "hi", **body})
    return refused.value


def answer(parts: Sequence[Part], *, body: dict[str, Any] | None = None, **changes: Any) -> Any:
    """The body of a whole response, which openai's own type accepts."""
    given = {"input": "hi", **(body or {})}
    make = partial(response_writer, given, parse_response(given))
    whole = json.loads(written(make, reply_events(parts, **changes)).messages[1]["body"])
    Response.model_validate(whole, strict=True)
    return whole


def events_of(parts: Sequence[Part], *, body: dict[str, Any] | None = None, **changes: Any) -> list[Any]:
    """The events of a streamed response, each of which openai's own types accept."""
    given = {"input": "hi", "stream": True, **(body or {})}
    make = partial(response_writer, given, parse_response(given))
    named = written(make, reply_events(parts, **changes)).events
    assert [name for name, _ in named] == [event["type"] for _, event in named]
    assert [event["sequence_number"] for _, event in named] == list(range(len(named)))
    for _, event in named:
        EVENT.validate_python(event)
    return [event for _, event in named]


def test_a_text_is_what_the_user_says_after_the_instructions() -> None:
    assert chat_of(instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_items_are_turns_that_alternate() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "system", "content": "Be kind."},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
        {"role": "user", "content": "Say it."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"},
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look_up", "arguments": '{"city": "K"}'},
        {"type": "function_call", "call_id": "c2", "namespace": "agents", "name": "ask", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "on the Rhine"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "far"}]},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a\nb"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
        {"role": "developer", "content": "Now in German."},
        {"role": "user", "content": "Well?"},
    ]
    assert chat_of(input=items).messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Where?\nSay it."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("c1", "look_up", '{"city": "K"}'), call("c2", "agents__ask", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "look_up", "content": "on the Rhine"},
        {"role": "tool", "tool_call_id": "c2", "name": "agents__ask", "content": "far"},
        {"role": "assistant", "content": "", "tool_calls": [call("c3", "patch", '{"input": "a\\nb"}')]},
        {"role": "tool", "tool_call_id": "c3", "name": "patch", "content": "done"},
        {"role": "user", "content": "Now in German.\nWell?"},
    ]


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_all_kinds_of_tools_are_told_as_functions_and_the_servers_own_are_left_out() -> None:
    chat = chat_of(tools=[LOOK_UP, PATCH, AGENTS, {"type": "web_search", "external_web_access": False}])
    assert chat.tools is not None
    look_up, patch, ask = (each["function"] for each in chat.tools)
    assert look_up == {name: LOOK_UP[name] for name in ("name", "description", "parameters")}
    assert (patch["name"], list(patch["parameters"]["properties"])) == ("patch", ["input"])
    assert patch["description"].startswith("Change files.") and 'start: "x"' in patch["description"]
    assert ask == {"name": "agents__ask", "parameters": {"type": "object"}}
    assert chat_of(tools=[{"type": "web_search"}]).tools is None


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, ToolChoice.AUTO, ["look_up", "patch"]),
        ("none", ToolChoice.NONE, ["look_up", "patch"]),
        ("required", ToolChoice.REQUIRED, ["look_up", "patch"]),
        ({"type": "function", "name": "look_up"}, NamedTool("look_up"), ["look_up", "patch"]),
        ({"type": "custom", "name": "patch"}, NamedTool("patch"), ["look_up", "patch"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            ToolChoice.REQUIRED,
            ["patch"],
        ),
    ],
)
def test_a_choice_says_which_tools_may_be_called(choice: Any, expected: Any, names: list[str]) -> None:
    chat = chat_of(tools=[LOOK_UP, PATCH], tool_choice=choice, parallel_tool_calls=False)
    assert (chat.tool_choice, chat.calls_in_parallel) == (expected, False)
    assert [each["function"]["name"] for each in chat.tools or ()] == names


def test_what_the_text_must_be_and_how_hard_it_is_thought_about() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    wanted = parse_response({"input": "hi", "text": {"format": form, "verbosity": "medium"}})
    assert json.loads(wanted.asked["schema"]) == schema
    assert "schema" not in parse_response({"input": "hi", "text": {"format": {"type": "text"}}}).asked
    assert chat_of(reasoning={"effort": "low", "summary": "auto"}).template_options == {"reasoning_effort": "low"}
    off = chat_of(reasoning={"effort": "none"}).template_options
    assert off == {"reasoning_effort": "none", "enable_thinking": False}


def test_lengths_and_samplers_are_those_of_other_bodies() -> None:
    wanted = parse_response({"input": "hi", "max_output_tokens": 9, "temperature": 0.5, "seed": 3, "top_k": 4})
    assert dict(wanted.asked) == {"max_new_tokens": 9, "temperature": 0.5, "top_k": 4}
    assert (wanted.seed, wanted.otherwise, wanted.is_streamed) == (3, DEFAULTS, False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{"type": []}]}, "tools[0].type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": {}}]}}, "tool_choice"),
        ({"tools": [LOOK_UP, LOOK_UP]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "look_up"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
        (
            {"tools": [LOOK_UP], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
            "text.format",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    refused = refusal_of(**body)
    assert (refused.status, refused.param) == (400, param)
    assert param.partition("[")[0].partition(".")[0] in refused.message


def test_a_whole_response_has_an_item_for_everything_in_its_order() -> None:
    body = answer(
        ALL_PARTS,
        body={"tools": [LOOK_UP], "metadata": {"a": "b"}, "instructions": "Be brief."},
        reasoning_tokens=3,
    )
    reasoning, message, first, second = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert [part["text"] for part in message["content"]] == ["I look"]
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_a", "look_up", '{"city": "Köln"}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("call_b", "stop", "{}")
    assert {item["status"] for item in body["output"]} == {"completed"}
    assert len({item["id"] for item in body["output"]}) == 4
    assert (body["id"], body["status"], body["incomplete_details"]) == ("resp_r", "completed", None)
    assert (body["temperature"], body["top_p"], body["tools"]) == (0.5, 0.9, [LOOK_UP])
    assert (body["metadata"], body["instructions"], body["store"]) == ({"a": "b"}, "Be brief.", False)
    assert body["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 21,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 26,
    }
    assert body["metrics"]["speculative_decoding"]["seed"] == 7


def test_a_response_that_its_length_ends_is_incomplete_and_one_without_text_has_an_empty_message() -> None:
    cut = answer([Content("I lo")], finish_reason="length")
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"
    (empty,) = answer([])["output"]
    assert empty["content"][0]["text"] == ""


def test_reasoning_stands_in_for_its_summary_where_that_is_asked_for() -> None:
    (item, _) = answer(ALL_PARTS[:3], body={"reasoning": {"summary": "auto"}})["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "let me see"}] and "content" not in item
    kinds = [event["type"] for event in events_of([Reasoning("a")], body={"reasoning": {"summary": "auto"}})]
    assert kinds[3:7] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]


def test_reasoning_is_kept_where_openai_encrypts_it_for_who_sends_back_nothing_else() -> None:
    body = {"include": ["reasoning.encrypted_content"]}
    for more in ({}, {"reasoning": {"summary": "auto"}}):
        (item, _) = answer(ALL_PARTS[:3], body=body | more)["output"]
        alone = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
        turns = chat_of(input=[{"role": "user", "content": "a"}, alone]).messages
        assert turns[1]["reasoning_content"] == "let me see"
    assert events_of([Reasoning("a")], body=body)[-2]["item"]["encrypted_content"] == "cosine:YQ=="
    assert kept_text("gAAA") is kept_text("cosine:é") is kept_text("cosine:/w==") is None


@given(st.text())
def test_any_text_can_be_kept(text: str) -> None:
    assert kept_text(kept(text)) == text


def test_calls_of_custom_tools_and_of_a_namespace_are_told_as_such() -> None:
    calls: list[Part] = [
        *(CallBegun(0, "c1", "patch"), CallArguments(0, '{"input": '), CallArguments(0, '"a\\nb"}')),
        *(CallBegun(1, "c2", "agents__ask"), CallArguments(1, "{}")),
    ]
    tools = {"tools": [PATCH, AGENTS]}
    patch, ask = answer(calls, body=tools)["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a\nb")
    assert (ask["type"], ask["namespace"], ask["name"]) == ("function_call", "agents", "ask")
    events = events_of(calls, body=tools)
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["a\nb", "{}"]


def test_log_probabilities_are_told_of_what_is_said() -> None:
    given = {"input": "hi", "stream": True, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    wanted = parse_response(given)
    assert wanted.asked["logprobs"] == 1
    likely = LikelyToken(7, "b", (98,), -2.0)
    tokens = [TokenLogprob(each, "a", (97,), -0.5, (likely,)) for each in range(4)]
    parts: list[Part] = [Reasoning("hm"), Content(""), Content("aa"), Content(""), CallBegun(0, "c", "f")]
    started, *events, finished = reply_events(parts)
    weighed = [ChoicePart(CHOICE, part, (token,)) for part, token in zip(parts, [*tokens, tokens[0]], strict=True)]
    assert len(events) == len(weighed)
    told = written(partial(response_writer, given, wanted), [started, *weighed, finished]).events
    for _, event in told:
        EVENT.validate_python(event)
    (delta,) = (event for name, event in told if name == "response.output_text.delta")
    of_text = {"token": "a", "logprob": -0.5, "bytes": [97]}
    top = [{"token": "b", "logprob": -2.0, "bytes": [98]}]
    assert delta["logprobs"] == [of_text | {"top_logprobs": top}] * 2
    message = told[-1][1]["response"]["output"][1]
    assert message["content"][0]["logprobs"] == delta["logprobs"]


def test_the_events_of_a_stream_come_in_openais_order_and_add_up_to_the_response() -> None:
    events = events_of(ALL_PARTS)
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"] == answer(ALL_PARTS) | {"output": done}
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None


def test_an_error_within_a_stream_is_told_in_both_events_that_clients_read() -> None:
    async def run() -> Sent:
        sent = Sent()
        given = {"input": "hi", "stream": True}
        writer = response_writer(
            given, parse_response(given), request_id="r", created_s=9, model="m", seed=7, send=sent
        )
        with pytest.raises(ApiError):
            await writer.fail(internal())
        for event in reply_events([Content("I")])[:2]:
            await writer.take(event)
        await writer.fail(internal())
        return sent

    *_, (first, error), (last, failed) = asyncio.run(run()).events
    assert (first, last) == ("error", "response.failed")
    assert (error["code"], error["message"]) == ("internal_error", internal().message)
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")
    for event in (error, failed):
        EVENT.validate_python(event)


def test_a_response_is_the_targets_text() -> None:
    body = {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": TOKENS}
    reply = asked("POST", "/v1/responses", body)
    (message,) = reply.json["output"]
    assert message["content"][0]["text"] == text_of(PROMPT, tokens=TOKENS)
    assert (reply.json["status"], reply.json["temperature"]) == ("incomplete", 0.0)
    assert reply.json["usage"]["output_tokens"] == TOKENS


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_no_response_can_be_asked_for_again(method: str) -> None:
    reply = asked(method, "/v1/responses/resp_1")
    assert reply.status == 404
    assert reply.error["message"] == "Nothing is stored here: send the whole conversation as input."


def test_a_client_that_hangs_up_ends_its_generation() -> None:
    async def use(gateway: Gateway) -> None:
        gone = asyncio.Event()
        body = {"input": PROMPT, "temperature": 0, "stream": True, "max_output_tokens": 400}
        asking = asyncio.ensure_future(gateway.post("/v1/responses", body, hang_up=gone))
        await asyncio.sleep(3)
        gone.set()
        reply = await asking
        assert b"response.output_text.delta" in reply.body and not reply.is_complete
        assert gateway.told[-1]["error"] == "the client hung up"

    with_gateway(use, curve=SLOW)
