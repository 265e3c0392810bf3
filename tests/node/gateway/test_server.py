"""The gateway on a socket: where it listens, how it ends, and what a client that leaves takes along."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest
from openai import APIConnectionError, APIError, OpenAI

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.server import JOIN_PATIENCE_S, join_patiently, listening, url_of
from cosine_protocol.errors import PeerLost, UsageError
from tests.node.gateway.letters import MODEL, PROMPT, SLOW, text_of
from tests.node.gateway.serving import HOST, TIMEOUT_S, ServedGateway, served
from tests.swarm.reference import assert_freed

pytestmark = pytest.mark.network

TOKENS: Final = 24


def streamed(client: OpenAI, tokens: int) -> Any:
    return client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=tokens, stream=True)


def client_of(gateway: ServedGateway) -> OpenAI:
    return OpenAI(base_url=gateway.base_url, api_key="none", max_retries=0)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with listening(HOST, 0) as place:
        port = place.getsockname()[1]
        assert url_of(place, HOST) == f"http://{HOST}:{port}"
        with pytest.raises(UsageError, match=rf"cannot listen on {HOST} port {port} \(.*in use\); choose another"):
            listening(HOST, port)


class LateNetwork:
    """A network whose first peer answers from `since_s` on; it counts who tries to join and who is in."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.attempts = 0
        self.joined = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[str]:
        self.attempts += 1
        if asyncio.get_running_loop().time() < self.since_s:
            raise PeerLost("bootstrap", "it does not answer")
        self.joined += 1
        try:
            yield "client"
        finally:
            self.joined -= 1


def test_a_network_that_starts_at_the_same_time_is_waited_for() -> None:
    async def run() -> None:
        network = LateNetwork(asyncio.get_running_loop().time() + 5)
        async with AsyncExitStack() as stack:
            assert await join_patiently(network.client, stack, asyncio.Event()) == "client"
            assert (network.attempts, network.joined) == (4, 1)
        assert network.joined == 0

    run_virtual(run())


def test_a_network_that_does_not_come_is_given_up() -> None:
    async def run() -> float:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with AsyncExitStack() as stack:
            with pytest.raises(PeerLost, match="it does not answer"):
                await join_patiently(LateNetwork(began_s + 1e6).client, stack, asyncio.Event())
        return clock() - began_s

    assert JOIN_PATIENCE_S <= run_virtual(run()) < JOIN_PATIENCE_S + 5


def test_a_gateway_that_is_stopped_while_it_waits_ends_at_once() -> None:
    async def run() -> float:
        clock, stop = asyncio.get_running_loop().time, asyncio.Event()
        began_s = clock()
        asyncio.get_running_loop().call_later(3, stop.set)
        async with AsyncExitStack() as stack:
            assert await join_patiently(LateNetwork(began_s + 1e6).client, stack, stop) is None
        return clock() - began_s

    assert run_virtual(run()) == pytest.approx(3)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), (HOST, -1), (HOST, 65_536)])
def test_a_place_that_cannot_be_is_a_sentence(host: str, port: int) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        listening(host, port)


def test_an_address_with_colons_is_written_in_brackets() -> None:
    with socket.create_server((HOST, 0)) as place:
        assert url_of(place, "::1").startswith("http://[::1]:")


def test_what_is_under_way_is_finished_and_nothing_new_begun() -> None:
    with served(curve=SLOW) as gateway, client_of(gateway) as client:
        stream = streamed(client, TOKENS)
        pieces = [next(stream).choices[0].text]
        gateway.ask_to_stop()
        pieces += [piece.choices[0].text for piece in stream]
        assert "".join(pieces) == text_of(PROMPT, tokens=TOKENS)
        with pytest.raises(APIConnectionError):
            client.models.list()


def test_what_takes_too_long_is_ended_with_an_error() -> None:
    with served(curve=SLOW, drain_s=0.1) as gateway, client_of(gateway) as client:
        stream = streamed(client, 2000)
        next(stream)
        gateway.ask_to_stop()
        with pytest.raises(APIError, match="shutting down"):
            list(stream)


def test_a_client_that_leaves_takes_its_generation_along() -> None:
    with served(curve=SLOW) as gateway, client_of(gateway) as client:
        with streamed(client, 2000) as stream:
            next(stream)
        event, told = gateway.events.get(timeout=TIMEOUT_S)
        gateway.ask(assert_freed(gateway.swarm))
        assert (event, told["status"], told["error"]) == ("request", 200, "the client hung up")
