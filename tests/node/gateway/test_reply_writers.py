"""Writers of a response: what is sent when, and where an error goes."""

import asyncio
import json
from typing import Any

import pytest

from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoiceText
from cosine_node.gateway.replies import CompletionStyle, Heading, StreamedReplyWriter, WholeReplyWriter
from cosine_node.gateway.text_request import RequestedChoice
from tests.node.gateway.generations import DONE

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
