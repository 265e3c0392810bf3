"""The gateway on a socket: where it listens, how it ends, and what a client that leaves takes along."""

import socket
from typing import Any, Final

import pytest
from openai import APIConnectionError, APIError, OpenAI

from cosine_node.gateway.server import listening, url_of
from cosine_protocol.errors import UsageError
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
