"""The gateway on a socket: where it listens, how it ends, and whom it waits for."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

import pytest
import uvicorn
from openai import APIConnectionError, APIError, OpenAI
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.http.server import HEADER_S, DeadlineProtocol, IdleConnections, listening, url_of
from cosine_p2p.text import template_process
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.text.test_template_process import ENDLESS
from tests.node.gateway.gateways import HOST, MODEL, PROMPT, SLOW, TIMEOUT_S, ServedGateway, served, text_of
from tests.node.gateway.played import TEMPLATE, looks_up, played_swarm
from tests.swarm.reference import assert_freed
from tests.thoroughness import quick_first

pytestmark = pytest.mark.network

REQUEST: Final = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_place_that_cannot_be_is_a_sentence() -> None:
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


def test_what_is_under_way_is_finished_and_nothing_new_begun() -> None:
    with served(curve=SLOW) as gateway, client_of(gateway) as client:
        stream = streamed(client, 16)
        pieces = [next(stream).choices[0].text]
        gateway.ask_to_stop()
        pieces += [piece.choices[0].text for piece in stream]
        assert "".join(pieces) == text_of(PROMPT, tokens=16)
        with pytest.raises(APIConnectionError):
            client.models.list()


def test_what_takes_too_long_is_ended_with_an_error() -> None:
    with served(curve=SLOW, drain_s=0.1) as gateway, client_of(gateway) as client:
        stream = streamed(client, 2000)
        next(stream)
        gateway.ask_to_stop()
        with pytest.raises(APIError, match="shutting down"):
            list(stream)


@pytest.mark.parametrize("is_streamed", quick_first([False, True]))
def test_a_client_that_leaves_takes_every_choice_along(*, is_streamed: bool) -> None:
    choices = 3
    body = json.dumps({"prompt": PROMPT, "max_tokens": 2000, "n": choices, "stream": is_streamed}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with served(curve=SLOW) as gateway:

        async def begun() -> None:
            for _ in range(1000):
                if gateway.swarm.members[0].service.requests == choices:
                    return
                await asyncio.sleep(0.01)
            pytest.fail("the choices did not begin")

        with socket.create_connection((HOST, int(gateway.url.rsplit(":", 1)[1]))) as connection:
            connection.sendall(head.encode() + body)
            gateway.ask(begun())
        _, told = gateway.events.get(timeout=TIMEOUT_S)
        gateway.ask(assert_freed(gateway.swarm, within_s=1.0))
        assert told["error"] == "the client hung up"


@pytest.mark.thorough
def test_a_template_without_an_end_costs_its_own_chat_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "RENDER_TIMEOUT_S", 2.0)
    template = "{% if messages[0].content == 'endless' %}" + ENDLESS + "{% endif %}" + TEMPLATE
    with served(swarm_of=played_swarm(looks_up, template=template)) as gateway, client_of(gateway) as client:

        def chat(text: str) -> str | None:
            done = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
            return done.choices[0].message.content

        quiet = chat("Where?")
        with ThreadPoolExecutor(2) as beside:
            hanging = [beside.submit(chat, "endless") for _ in range(2)]
            assert chat("Where?") == quiet == "I do not know."
            for each in hanging:
                with pytest.raises(APIError, match="too long"):
                    each.result()
        assert chat("Where?") == quiet


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


def connected(*, answer_s: float = 0.0, idle: IdleConnections | None = None) -> tuple[DeadlineProtocol, Wire]:
    """A connection to an application that answers after some seconds."""

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


def test_of_the_idle_connections_of_an_address_the_oldest_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[bool]:
        idle = IdleConnections(16)
        asking, first = connected(answer_s=1.0, idle=idle)
        asking.data_received(REQUEST)
        wires = [connected(idle=idle)[1] for _ in range(6)]
        await asyncio.sleep(0)
        return [wire.is_closed for wire in (first, *wires)]

    assert run_virtual(run()) == [False, True, True, False, False, False, False]
    (said,) = (each for each in caplog.messages if "closing the oldest" in each)
    assert said.startswith("5 of ")


def test_an_answer_may_take_long_and_a_second_request_on_a_connection_has_its_deadline_too() -> None:
    async def run() -> None:
        protocol, wire = connected(answer_s=10 * HEADER_S)
        protocol.data_received(REQUEST)
        await asyncio.sleep(9 * HEADER_S)
        assert not wire.is_closed
        await asyncio.sleep(1.5 * HEADER_S)
        assert wire.written.startswith(b"HTTP/1.1 200")
        protocol, wire = connected()
        for answers in (1, 2):
            protocol.data_received(REQUEST)
            await asyncio.sleep(0.1)
            assert wire.written.count(b"HTTP/1.1 200") == answers and not wire.is_closed
        protocol.data_received(REQUEST[:10])
        await asyncio.sleep(HEADER_S)
        assert wire.is_closed
        protocol.connection_lost(None)

    run_virtual(run())
