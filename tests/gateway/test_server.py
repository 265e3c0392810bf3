"""The gateway on a socket: listening, draining and deadlines."""

import asyncio
from typing import Any, Final, cast
from unittest.mock import Mock

import pytest
import uvicorn
from openai import APIConnectionError, APIError, OpenAI
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from cosine_gateway.http.server import HEADER_S, DeadlineProtocol, IdleConnections, listening, url_of
from cosine_protocol.errors import UsageError
from tests.gateway.gateways import HOST, MODEL, PROMPT, SLOW, ServedGateway, served, text_of
from tests.scenes import in_virtual_time

pytestmark = pytest.mark.network

REQUEST: Final = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_an_unusable_address_is_refused_in_one_sentence() -> None:
    with listening(HOST, 0) as place:
        port = place.getsockname()[1]
        assert url_of(place, HOST) == f"http://{HOST}:{port}"
        assert url_of(place, "::1").startswith("http://[::1]:")
        with pytest.raises(UsageError, match=rf"cannot listen on {HOST} port {port} \(.*in use\); choose another"):
            listening(HOST, port)
    for host, number in (("no.such.host.invalid", 0), (HOST, -1), (HOST, 65_536)):
        with pytest.raises(UsageError, match="cannot listen"):
            listening(host, number)


def streamed(client: OpenAI, tokens: int) -> Any:
    return client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=tokens, stream=True)


def client_of(gateway: ServedGateway) -> OpenAI:
    return OpenAI(base_url=gateway.base_url, api_key="none", max_retries=0)


def test_running_requests_finish_and_new_ones_are_refused() -> None:
    with served(curve=SLOW) as gateway, client_of(gateway) as client:
        stream = streamed(client, 16)
        pieces = [next(stream).choices[0].text]
        gateway.ask_to_stop()
        pieces += [piece.choices[0].text for piece in stream]
        assert "".join(pieces) == text_of(PROMPT, tokens=16)
        with pytest.raises(APIConnectionError):
            client.models.list()


def test_requests_that_outlast_the_drain_end_with_an_error() -> None:
    with served(curve=SLOW, drain_s=0.1) as gateway, client_of(gateway) as client:
        stream = streamed(client, 2000)
        next(stream)
        gateway.ask_to_stop()
        with pytest.raises(APIError, match="shutting down"):
            list(stream)


def connected(*, answer_s: float = 0.0, idle: IdleConnections | None = None) -> tuple[DeadlineProtocol, Mock]:
    """A connection to an application that answers after some seconds, and its transport."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(answer_s)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(cast("Any", app), log_config=None, access_log=False, lifespan="off", ws="none")
    config.load()
    loop = asyncio.get_running_loop()
    protocol = DeadlineProtocol(
        idle or IdleConnections(1024), config=config, server_state=ServerState(), app_state={}, _loop=loop
    )
    wire = Mock(spec=asyncio.Transport)
    wire.get_extra_info.return_value = None
    wire.is_closing.side_effect = lambda: wire.close.called
    protocol.connection_made(wire)
    return protocol, wire


def written(wire: Mock) -> bytes:
    return b"".join(call.args[0] for call in wire.write.call_args_list)


@pytest.mark.parametrize("pieces", [[], [REQUEST[:10]], [REQUEST[:10], REQUEST[10:20], REQUEST[20:-1]]])
@in_virtual_time
async def test_an_incomplete_header_times_out(pieces: list[bytes]) -> None:
    protocol, wire = connected()
    for piece in pieces:
        protocol.data_received(piece)
        await asyncio.sleep(HEADER_S / 4)
    await asyncio.sleep(HEADER_S)
    assert wire.close.called and not wire.write.called


@in_virtual_time
async def test_the_oldest_idle_connections_of_an_address_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    idle = IdleConnections(16)
    asking, first = connected(answer_s=1.0, idle=idle)
    asking.data_received(REQUEST)
    wires = [connected(idle=idle)[1] for _ in range(6)]
    await asyncio.sleep(0)
    closed = [wire.close.called for wire in (first, *wires)]
    assert closed == [False, True, True, False, False, False, False]
    (said,) = (each for each in caplog.messages if "closing the oldest" in each)
    assert said.startswith("5 of ")


@in_virtual_time
async def test_a_slow_answer_is_allowed_and_each_request_of_a_connection_has_a_deadline() -> None:
    protocol, wire = connected(answer_s=10 * HEADER_S)
    protocol.data_received(REQUEST)
    await asyncio.sleep(9 * HEADER_S)
    assert not wire.close.called
    await asyncio.sleep(1.5 * HEADER_S)
    assert written(wire).startswith(b"HTTP/1.1 200")
    protocol, wire = connected()
    for answers in (1, 2):
        protocol.data_received(REQUEST)
        await asyncio.sleep(0.1)
        assert written(wire).count(b"HTTP/1.1 200") == answers and not wire.close.called
    protocol.data_received(REQUEST[:10])
    await asyncio.sleep(HEADER_S)
    assert wire.close.called
    protocol.connection_lost(None)
