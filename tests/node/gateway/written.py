"""What writers of replies send, of events made by hand."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_node.gateway.reply_writer import ReplyWriter
from cosine_node.gateway.text_request import RequestedChoice
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning
from cosine_protocol.request import Sampling
from tests.node.gateway.generations import generation
from tests.node.peers import request_of

CHOICE: Final = RequestedChoice(index=0, number=0, prompt="hi", seed=7)
ALL_PARTS: Final[tuple[Part, ...]] = (
    *(Reasoning("let me "), Reasoning("see")),
    *(Content("I "), Content("look")),
    *(CallBegun(0, "call_a", "look_up"), CallArguments(0, '{"ci'), CallArguments(0, 'ty": "Köln"}')),
    *(CallBegun(1, "call_b", "stop"), CallArguments(1, "{}")),
)
"""One of everything that a reply may have, in pieces."""


@dataclass(slots=True)
class Sent:
    """An ASGI `send` that keeps what it gets."""

    messages: list[Any] = field(default_factory=list)

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def pieces(self) -> list[Any]:
        """The JSON of all server-sent events without names, and without the mark at the end."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    @property
    def events(self) -> list[tuple[str, Any]]:
        """All named server-sent events, each with its JSON."""
        *events, rest = self.body.decode().split("\n\n")
        assert rest == ""
        lines = [event.split("\n") for event in events]
        assert all(len(each) == 2 and each[0].startswith("event: ") for each in lines)
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def reply_events(parts: Sequence[Part], **changes: Any) -> list[ChoiceEvent]:
    """The events of a reply with these parts; `changes` are of its generation."""
    started = ChoiceStarted(CHOICE, request_of("client", sampling=Sampling(temperature=0.5, top_p=0.9)))
    return [started, *(ChoicePart(CHOICE, part) for part in parts), ChoiceFinished(CHOICE, generation(**changes))]


def written(make: Callable[..., ReplyWriter], events: Sequence[ChoiceEvent]) -> Sent:
    """All that a writer sends for some events; `make` takes the fields that all writers have."""

    async def run() -> Sent:
        sent = Sent()
        writer = make(request_id="r", created_s=9, model="m", seed=7, send=sent)
        for event in events:
            await writer.take(event)
        await writer.end()
        return sent

    return asyncio.run(run())
