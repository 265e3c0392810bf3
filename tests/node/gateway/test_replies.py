"""Response bodies whole and in pieces, and their writers."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.gateway import replies
from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoiceText
from cosine_node.gateway.replies import (
    ChatStyle,
    CompletionStyle,
    Heading,
    StreamedReplyWriter,
    Style,
    WholeReplyWriter,
)
from cosine_node.gateway.text_request import RequestedChoice
from tests.node.gateway.generations import CODE, DONE, MATH, generation
from tests.node.peers import request_of


def finished(index: int = 0, number: int = 0, **changes: Any) -> ChoiceFinished:
    choice = RequestedChoice(index=index, number=number, prompt="p", seed=7, echo="")
    return ChoiceFinished(choice, generation(**changes))


def heading(style: Style) -> Heading:
    return Heading(style=style, request_id="r", created_s=9, model="m", fingerprint="fp_1")


def test_a_whole_chat() -> None:
    body = replies.whole_reply(heading(ChatStyle()), [(finished(), "hi")], seed=7)
    assert {name: body[name] for name in ("id", "object", "created", "model", "system_fingerprint")} == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "created": 9,
        "model": "m",
        "system_fingerprint": "fp_1",
    }
    message = {"role": "assistant", "content": "hi", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 21, "total_tokens": 26}


def test_pieces_of_a_chat() -> None:
    head = heading(ChatStyle())
    first, text, last = (
        replies.first_piece(head, 1),
        replies.text_piece(head, 1, "hi"),
        replies.last_piece(head, finished(1, finish_reason="length")),
    )
    assert first is not None
    assert [piece["choices"][0]["delta"] for piece in (first, text, last)] == [
        {"role": "assistant", "content": ""},
        {"content": "hi"},
        {},
    ]
    assert [piece["choices"][0]["finish_reason"] for piece in (first, text, last)] == [None, None, "length"]
    assert {(piece["object"], piece["choices"][0]["index"]) for piece in (first, text, last)} == {
        ("chat.completion.chunk", 1)
    }


def test_pieces_of_a_completion_have_no_opening() -> None:
    head = heading(CompletionStyle())
    assert replies.first_piece(head, 0) is None
    assert replies.last_piece(head, finished())["choices"] == [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    ]


def test_a_prompt_is_counted_once_for_all_its_choices() -> None:
    all_choices = [finished(0, 0), finished(1, 1), finished(2, 0, prompt_tokens=9), finished(3, 1, prompt_tokens=9)]
    assert replies.usage(all_choices) == {"prompt_tokens": 14, "completion_tokens": 84, "total_tokens": 98}
    assert replies.usage_piece(heading(ChatStyle()), all_choices)["choices"] == []


def test_speculation_is_summed_over_choices_and_drafters() -> None:
    report = replies.metrics([DONE, generation(drafters=(MATH,))], seed=7)["speculative_decoding"]
    assert [report[name] for name in ("drafted", "offered", "accepted", "acceptance_rate")] == [80, 40, 32, 0.8]
    assert (report["rounds"], report["tokens_per_round"]) == (10, 4.2)
    assert report["drafters"] == [
        {"peer_id": "peer-a", "domain": "code", "drafted": CODE.drafted, "accepted": CODE.accepted},
        {"peer_id": "peer-b", "domain": "math", "drafted": 2 * MATH.drafted, "accepted": 2 * MATH.accepted},
    ]


def test_nothing_drafted_is_no_division() -> None:
    idle = generation(drafted=0, offered=0, accepted=0, rounds=0, drafters=())
    report = replies.metrics([idle], seed=7)["speculative_decoding"]
    assert (report["acceptance_rate"], report["tokens_per_round"], report["drafters"]) == (0.0, 0.0, [])


def test_a_fingerprint_stands_for_weights_and_numerics() -> None:
    request = request_of("client")
    same = request_of("another", prompt=(9,))
    others = [replace(request, numerics="bfloat16"), replace(request, target_digest=bytes([9]) * 32)]
    assert replies.fingerprint(request) == replies.fingerprint(same)
    assert len({replies.fingerprint(each) for each in (request, *others)}) == 3


@given(st.text())
def test_an_event_is_one_line_of_json(text: str) -> None:
    data = replies.sent_event({"text": text})
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    assert json.loads(data.removeprefix(b"data: ")) == {"text": text}


HEADING = Heading(style=CompletionStyle(), request_id="r", created_s=1, model="m", fingerprint="")
FIRST, SECOND = (RequestedChoice(index=i, number=i, prompt="p", seed=i, echo="") for i in range(2))
EVENTS: list[ChoiceEvent] = [
    ChoiceText(SECOND, "b"),
    ChoiceFinished(SECOND, DONE),
    ChoiceText(FIRST, "a"),
    ChoiceText(FIRST, "!"),
    ChoiceFinished(FIRST, DONE),
]


class Sent:
    """An ASGI `send` that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def pieces(self) -> list[Any]:
        """The JSON of all server-sent events, without the mark at the end."""
        data = b"".join(message.get("body", b"") for message in self.messages).decode()
        *events, done, rest = data.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_whole_reply_has_its_choices_in_order_and_is_sent_at_the_end() -> None:
    async def run() -> None:
        sent = Sent()
        writer = WholeReplyWriter(HEADING, seed=7, send=sent)
        for event in EVENTS:
            await writer.take(event)
        assert not sent.messages and not writer.is_begun
        await writer.end()
        body = json.loads(sent.messages[1]["body"])
        assert [choice["text"] for choice in body["choices"]] == ["a!", "b"]

    asyncio.run(run())


@pytest.mark.parametrize("includes_usage", [False, True])
def test_the_last_piece_of_a_stream_carries_the_metrics(includes_usage: bool) -> None:
    async def run() -> list[Any]:
        sent = Sent()
        writer = StreamedReplyWriter(HEADING, seed=7, send=sent, choices=2, includes_usage=includes_usage)
        for event in EVENTS:
            await writer.take(event)
        await writer.end()
        return sent.pieces

    *pieces, last = asyncio.run(run())
    assert "metrics" in last and not any("metrics" in piece for piece in pieces)
    assert ([piece["usage"] for piece in pieces] == [None] * 5) if includes_usage else "usage" not in last
    assert bool(last["choices"]) is not includes_usage


def test_an_error_is_raised_until_a_stream_has_begun_and_then_sent_in_it() -> None:
    async def run() -> list[Any]:
        sent = Sent()
        writer = StreamedReplyWriter(HEADING, seed=7, send=sent, choices=2, includes_usage=False)
        with pytest.raises(ApiError):
            await writer.fail(internal())
        await writer.take(EVENTS[0])
        await writer.fail(internal())
        return sent.pieces

    assert asyncio.run(run())[-1]["error"]["code"] == "internal_error"
