"""A connection whose request does not come is closed; one that is served is not."""

import asyncio
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.server import HEADER_S, DeadlineProtocol

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def connected(*, answer_s: float = 0.0) -> tuple[DeadlineProtocol, Wire]:
    """A connection to an application that answers after some seconds."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(answer_s)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(cast("Any", app), log_config=None, access_log=False, lifespan="off", ws="none")
    config.load()
    loop = asyncio.get_running_loop()
    protocol = DeadlineProtocol(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    wire = Wire()
    protocol.connection_made(wire)
    return protocol, wire


@pytest.mark.parametrize("pieces", [[], [REQUEST[:10]], [REQUEST[:10], REQUEST[10:20], REQUEST[20:-1]]])
def test_half_a_header_is_not_waited_for(pieces: list[bytes]) -> None:
    async def run() -> None:
        protocol, wire = connected()
        for piece in pieces:
            protocol.data_received(piece)
            await asyncio.sleep(HEADER_S / 4)
        await asyncio.sleep(HEADER_S)
        assert wire.is_closed and not wire.written

    run_virtual(run())


def test_an_answer_may_take_long() -> None:
    async def run() -> None:
        protocol, wire = connected(answer_s=10 * HEADER_S)
        protocol.data_received(REQUEST)
        await asyncio.sleep(9 * HEADER_S)
        assert not wire.is_closed
        await asyncio.sleep(1.5 * HEADER_S)
        assert wire.written.startswith(b"HTTP/1.1 200")

    run_virtual(run())


def test_a_second_request_on_a_connection_has_its_deadline_too() -> None:
    async def run() -> None:
        protocol, wire = connected()
        protocol.data_received(REQUEST)
        await asyncio.sleep(0.1)
        protocol.data_received(REQUEST)
        await asyncio.sleep(0.1)
        assert wire.written.count(b"HTTP/1.1 200") == 2 and not wire.is_closed
        protocol.data_received(REQUEST[:10])
        await asyncio.sleep(HEADER_S)
        assert wire.is_closed
        protocol.connection_lost(None)

    run_virtual(run())
