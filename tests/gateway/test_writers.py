"""Replies in the format of each API, whole and streamed, from handmade events."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_gateway.event_stream import sent_event
from cosine_gateway.messages.reply import call_input
from cosine_gateway.reply import metrics
from cosine_gateway.responses.items import kept, kept_text
from cosine_gateway.text_request import RequestedChoice
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning, ToolCall
from cosine_p2p.request.logprobs import LikelyToken, TokenLogprob
from cosine_p2p.request.origins import Origin
from tests.gateway.dialects import DIALECTS
from tests.gateway.generations import CODE, DONE, MATH, generation
from tests.gateway.test_turns import AGENTS, LOOK_UP, PATCH
from tests.gateway.written import ALL_PARTS, CHOICE, pieces, reply_events, whole, written
from tests.node.peers import request_of

CHATS, COMPLETIONS, RESPONSES, MESSAGES = DIALECTS.values()
NOT_PREDICTED: Final = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
CALLS: Final = (ToolCall("call_a", "look_up", '{"city": "Köln"}'), ToolCall("call_b", "stop", "{}"))


def finished(index: int = 0, number: int = 0, **changes: Any) -> ChoiceFinished:
    choice = RequestedChoice(index=index, number=number, prompt="p", seed=7)
    return ChoiceFinished(choice, generation(**changes))


FIRST, SECOND = finished(0, 0), finished(1, 1)
TWO_CHOICES: Final[list[ChoiceEvent]] = [
    ChoicePart(SECOND.choice, Content("b")),
    SECOND,
    ChoicePart(FIRST.choice, Content("a")),
    ChoicePart(FIRST.choice, Content("!")),
    FIRST,
]


def test_a_chat_has_its_choices_in_order_and_counts_a_prompt_once() -> None:
    body = whole(CHATS, TWO_CHOICES, n=2)
    assert {name: body[name] for name in ("id", "object", "created", "model", "system_fingerprint")} == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "created": 9,
        "model": "m",
        "system_fingerprint": "",
    }
    assert body["choices"] == [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
        for index, text in enumerate(["a!", "b"])
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 42,
        "total_tokens": 47,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, **NOT_PREDICTED},
    }


@pytest.mark.parametrize("includes_usage", [False, True])
def test_the_last_piece_of_several_choices_carries_the_metrics(includes_usage: bool) -> None:
    options = {"n": 2, "stream_options": {"include_usage": includes_usage}}
    *others, last = pieces(COMPLETIONS, TWO_CHOICES, **options)
    assert [each["choices"][0]["text"] for each in others[:5]] == ["b", "", "a", "!", ""][: len(others)]
    assert "metrics" in last and not any("metrics" in piece for piece in others)
    assert ([piece["usage"] for piece in others] == [None] * 5) if includes_usage else "usage" not in last
    assert bool(last["choices"]) is not includes_usage


def test_a_response_has_an_item_for_everything_in_its_order() -> None:
    fields = {"tools": [LOOK_UP], "metadata": {"a": "b"}, "instructions": "Be brief."}
    body = whole(RESPONSES, reply_events(ALL_PARTS, reasoning_tokens=3), **fields)
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
    cut = whole(RESPONSES, reply_events([Content("I lo")], finish_reason="length"))
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"
    (empty,) = whole(RESPONSES, reply_events([]))["output"]
    assert empty["content"][0]["text"] == ""


def test_the_events_of_a_response_come_in_openais_order_and_add_up_to_it() -> None:
    events = pieces(RESPONSES, reply_events(ALL_PARTS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
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
    assert events[-1]["response"] == whole(RESPONSES, reply_events(ALL_PARTS)) | {"output": done}
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None


def test_reasoning_is_its_summary_where_that_is_asked_for_and_is_kept_where_openai_encrypts_it() -> None:
    summary = {"reasoning": {"summary": "auto"}}
    (item, _) = whole(RESPONSES, reply_events(ALL_PARTS[:3]), **summary)["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "let me see"}] and "content" not in item
    kinds = [event["type"] for event in pieces(RESPONSES, reply_events([Reasoning("a")]), **summary)]
    assert kinds[3:7] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    include: Any = {"include": ["reasoning.encrypted_content"]}
    for more in ({}, summary):
        (item, _) = whole(RESPONSES, reply_events(ALL_PARTS[:3]), **include, **more)["output"]
        alone = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
        (chat,) = RESPONSES.parse({"input": [{"role": "user", "content": "a"}, alone]}).prompts
        assert chat.messages[1]["reasoning_content"] == "let me see"  # type: ignore[union-attr]  # it is a chat
    assert kept_text("gAAA") is kept_text("cosine:é") is kept_text("cosine:/w==") is None


@given(st.text())
def test_any_text_can_be_kept_and_an_event_is_one_line_of_json_after_its_name(text: str) -> None:
    assert kept_text(kept(text)) == text
    data = sent_event({"text": text})
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    assert json.loads(data.removeprefix(b"data: ")) == {"text": text}
    assert sent_event({"text": text}, name="a.b") == b"event: a.b\n" + data


def test_calls_of_custom_tools_and_of_a_namespace_are_told_as_such() -> None:
    calls: list[Part] = [
        *(CallBegun(0, "c1", "patch"), CallArguments(0, '{"input": '), CallArguments(0, '"a\\nb"}')),
        *(CallBegun(1, "c2", "agents__ask"), CallArguments(1, "{}")),
    ]
    tools = {"tools": [PATCH, AGENTS]}
    patch, ask = whole(RESPONSES, reply_events(calls), **tools)["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a\nb")
    assert (ask["type"], ask["namespace"], ask["name"]) == ("function_call", "agents", "ask")
    events = pieces(RESPONSES, reply_events(calls), **tools)
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["a\nb", "{}"]


def test_log_probabilities_of_a_response_are_told_of_what_is_said() -> None:
    likely = LikelyToken(7, "b", (98,), -2.0)
    tokens = [TokenLogprob(each, "a", (97,), -0.5, (likely,)) for each in range(4)]
    parts: list[Part] = [Reasoning("hm"), Content(""), Content("aa"), Content(""), CallBegun(0, "c", "f")]
    started, *_, ended = reply_events(parts)
    weighed = [ChoicePart(CHOICE, part, (token,)) for part, token in zip(parts, [*tokens, tokens[0]], strict=True)]
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    told = pieces(RESPONSES, [started, *weighed, ended], **asked)
    (delta,) = (event for event in told if event["type"] == "response.output_text.delta")
    of_text = {"token": "a", "logprob": -0.5, "bytes": [97]}
    top = [{"token": "b", "logprob": -2.0, "bytes": [98]}]
    assert delta["logprobs"] == [of_text | {"top_logprobs": top}] * 2
    assert told[-1]["response"]["output"][1]["content"][0]["logprobs"] == delta["logprobs"]


def test_a_message_has_a_block_for_everything_in_its_order() -> None:
    body = whole(MESSAGES, reply_events(ALL_PARTS, cached_tokens=2, reasoning_tokens=3))
    assert body["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": "r"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "call_a", "name": "look_up", "input": {"city": "Köln"}},
        {"type": "tool_use", "id": "call_b", "name": "stop", "input": {}},
    ]
    assert (body["id"], body["role"], body["stop_reason"]) == ("msg_r", "assistant", "tool_use")
    assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (3, 2)
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 3}
    hidden = {"thinking": {"type": "adaptive", "display": "omitted"}}
    assert whole(MESSAGES, reply_events(ALL_PARTS[:3]), **hidden)["content"] == [
        {"type": "thinking", "thinking": "", "signature": "r"},
        {"type": "text", "text": "I "},
    ]
    # The input of a call is always an object.
    given = {"": {}, '{"a": 1}': {"a": 1}, "[1]": {"input": [1]}, '{"a": ': {"input": '{"a": '}}
    assert {arguments: call_input(arguments) for arguments in given} == given


@pytest.mark.parametrize(
    ("changes", "reason", "sequence"),
    [
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "stop", "stop_text": "\n\n"}, "stop_sequence", "\n\n"),
        ({"finish_reason": "length", "completion_tokens": 24}, "max_tokens", None),
        ({"finish_reason": "length", "completion_tokens": 23}, "model_context_window_exceeded", None),
    ],
)
def test_a_message_says_why_it_ended(changes: dict[str, Any], reason: str, sequence: str | None) -> None:
    events = reply_events([Content("a")], **changes)
    body = whole(MESSAGES, events)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    assert pieces(MESSAGES, events)[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_the_events_of_a_message_come_in_anthropics_order_and_add_up_to_it() -> None:
    events = pieces(MESSAGES, reply_events(ALL_PARTS))
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
    assert events[-2]["usage"] == whole(MESSAGES, reply_events(ALL_PARTS))["usage"]


def test_speculation_is_summed_over_choices_and_drafters_and_nothing_drafted_is_no_division() -> None:
    report = metrics([DONE, generation(drafters=(MATH,))], seed=7)["speculative_decoding"]
    assert [report[name] for name in ("drafted", "offered", "accepted", "acceptance_rate")] == [80, 40, 32, 0.8]
    assert (report["rounds"], report["tokens_per_round"]) == (10, 4.2)
    assert report["drafters"] == [
        {"peer_id": "peer-a", "domain": "code", "drafted": CODE.drafted, "accepted": CODE.accepted},
        {"peer_id": "peer-b", "domain": "math", "drafted": 2 * MATH.drafted, "accepted": 2 * MATH.accepted},
    ]
    copied = Origin(source="target", is_copied=True, tokens=4)
    coded = [Origin(source="peer-a", domain="code", tokens=tokens) for tokens in (3, 2)]
    texts = [generation(origins=(coded[0], copied)), generation(origins=(coded[1], copied))]
    assert metrics(texts, seed=7)["speculative_decoding"]["origins"] == [
        {"source": "peer-a", "is_copied": False, "domain": "code", "tokens": 5},
        {"source": "target", "is_copied": True, "domain": "", "tokens": 8},
    ]
    idle = generation(drafted=0, offered=0, accepted=0, rounds=0, drafters=())
    report = metrics([idle], seed=7)["speculative_decoding"]
    assert (report["acceptance_rate"], report["tokens_per_round"], report["drafters"]) == (0.0, 0.0, [])


def test_a_fingerprint_stands_for_weights_and_numerics() -> None:
    request = request_of("client")
    others = [replace(request, numerics="bfloat16"), replace(request, target_digest=bytes([9]) * 32)]
    prints = []
    for each in (request, request_of("another", prompt=(9,)), *others):
        body = json.loads(written(CHATS, [ChoiceStarted(CHOICE, each), FIRST]))
        prints.append(body["system_fingerprint"])
    assert prints[0] == prints[1] and prints[0].startswith("fp_")
    assert len(set(prints)) == 3
