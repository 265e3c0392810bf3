"""The output of writers of replies for handmade events."""

import json
from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import AsyncMock

from cosine_gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_gateway.text_request import RequestedChoice
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning
from cosine_protocol.request import Sampling
from tests.gateway.dialects import Dialect
from tests.gateway.generations import generation
from tests.node.peers import request_of
from tests.scenes import in_real_time

CHOICE: Final = RequestedChoice(index=0, number=0, prompt="hi", seed=7)
ALL_PARTS: Final[tuple[Part, ...]] = (
    *(Reasoning("let me "), Reasoning("see")),
    *(Content("I "), Content("look")),
    *(CallBegun(0, "call_a", "look_up"), CallArguments(0, '{"ci'), CallArguments(0, 'ty": "Köln"}')),
    *(CallBegun(1, "call_b", "stop"), CallArguments(1, "{}")),
)
"""Each kind of part of a reply, in pieces."""


def reply_events(parts: Sequence[Part], **changes: Any) -> list[ChoiceEvent]:
    """The events of a reply with these parts; `changes` are of its generation."""
    started = ChoiceStarted(CHOICE, request_of("client", sampling=Sampling(temperature=0.5, top_p=0.9)))
    return [started, *(ChoicePart(CHOICE, part) for part in parts), ChoiceFinished(CHOICE, generation(**changes))]


@in_real_time
async def written(dialect: Dialect, events: Sequence[ChoiceEvent], **fields: Any) -> bytes:
    """The body that the writer of a dialect sends for some events; `fields` are those of the request."""
    send = AsyncMock()
    writer = dialect.writer(dialect.body("hi", **fields), send)
    for event in events:
        await writer.take(event)
    assert send.called == writer.stream.is_begun == bool(fields.get("stream"))
    await writer.end()
    return b"".join(call.args[0].get("body", b"") for call in send.call_args_list)


def whole(dialect: Dialect, events: Sequence[ChoiceEvent], **fields: Any) -> Any:
    """A whole reply, validated by the API's own package."""
    body = json.loads(written(dialect, events, **fields))
    dialect.whole.validate_python(body, strict=True)
    return body


def pieces(dialect: Dialect, events: Sequence[ChoiceEvent], **fields: Any) -> list[Any]:
    """The events of a streamed reply."""
    return dialect.events(written(dialect, events, stream=True, **fields))
