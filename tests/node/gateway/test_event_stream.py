"""No stream is left without a byte for long."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from cosine_node.engine.curve import CostCurve
from cosine_node.gateway.event_stream import SILENCE_S, WAITING, EventStream
from tests.node.gateway.gateways import PROMPT, Gateway, Reply, call, with_gateway

CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
CRAWLING = CostCurve(((1, 2.0), (64, 2.0)))
STREAMS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 4},
    "/v1/messages": CHAT,
}


async def watched(gateway: Gateway, path: str, body: Any) -> tuple[Reply, list[float]]:
    """A streamed reply, and the seconds from its request, and from each of its bytes, to the next."""
    loop = asyncio.get_running_loop()
    times_s = [loop.time()]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_timed(message: Message) -> None:
            times_s.append(loop.time())
            await send(message)

        await gateway.app(scope, receive, send_timed)

    reply = await call(app, "POST", path, {"stream": True, "temperature": 0, **body})
    return reply, [later - earlier for earlier, later in pairwise(times_s)]


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_waits_for_a_place_is_never_silent_for_long(path: str) -> None:
    async def use(gateway: Gateway) -> tuple[Reply, list[float]]:
        first = asyncio.ensure_future(gateway.complete(max_tokens=60))
        await asyncio.sleep(0)
        found = await watched(gateway, path, STREAMS[path])
        await first
        return found

    reply, silences_s = with_gateway(use, curve=CRAWLING, max_requests=1)
    assert reply.status == 200 and reply.is_complete and reply.body.startswith(WAITING)
    assert SILENCE_S <= max(silences_s) < SILENCE_S + 0.1


def test_what_is_refused_at_once_keeps_its_status() -> None:
    async def use(gateway: Gateway) -> tuple[Reply, list[float]]:
        return await watched(gateway, "/v1/chat/completions", CHAT | {"model": "other"})

    assert with_gateway(use)[0].status == 404


def test_comments_come_between_whole_events_and_end_with_the_stream() -> None:
    sent: list[Message] = []

    async def send_slowly(message: Message) -> None:
        await asyncio.sleep(0.01)
        sent.append(message)

    async def use(_: Gateway) -> None:
        stream = EventStream(send_slowly)
        async with stream.kept_alive():
            await asyncio.sleep(2.5 * SILENCE_S)
            await stream.write(b"data: 1\n\n")
            await stream.write(b"", is_last=True)
        await asyncio.sleep(2 * SILENCE_S)

    with_gateway(use)
    assert [message.get("body") for message in sent] == [None, WAITING, WAITING, b"data: 1\n\n", b""]
    assert [message.get("more_body") for message in sent] == [None, True, True, True, False]
