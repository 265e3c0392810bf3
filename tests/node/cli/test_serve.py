"""`cosine serve`: options of the gateway and client, and refusals."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_cli.serve import is_loopback, model_name
from cosine_gateway.http import server
from cosine_gateway.http.app import GatewayOptions
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from tests.node.cli.conftest import Run, Told

pytestmark = pytest.mark.network

PEER: Final = "/ip4/192.0.2.1/tcp/4001"
HOST: Final = "127.0.0.1"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of the gateway and client, which are not started."""
    noted: dict[str, Any] = {}

    async def note(
        place: socket.socket, host: str, client: Any, options: GatewayOptions, emit: Any, stop: asyncio.Event
    ) -> None:
        with place:
            noted.update(client, host=host, port=place.getsockname()[1], options=options)
            emit("ready", {"url": server.url_of(place, host), "model": options.model_name or "its own"})

    monkeypatch.setattr(server, "serve_gateway", note)
    return noted


@pytest.fixture
def serve(run: Run) -> Run:
    def told(*arguments: str) -> Told:
        return run("serve", PEER, "--port", "0", *arguments)

    return told


def test_without_options_it_serves_the_target_of_the_network_to_this_machine(
    serve: Run, seen: dict[str, Any]
) -> None:
    out = serve().out
    url = f"http://{HOST}:{seen['port']}"
    assert out == f"Serving its own at {url}/v1, and a page at {url}/\n"
    assert (seen["host"], seen["target"], seen["strategy"]) == (HOST, None, "cosine")
    assert (seen["initial_peers"], seen["max_drafters"], seen["trust"]) == ((PEER,), None, ())
    assert seen["prompt_window_tokens"] is None
    assert replace(seen["options"], machine=None) == GatewayOptions(
        model_name="", host_names=(socket.gethostname(),)
    )
    ready = json.loads(serve("--log-format", "json").out)
    assert ready == {"event": "ready", "url": f"http://{HOST}:{seen['port']}", "model": "its own"}


def test_options_reach_the_client_and_the_gateway(
    serve: Run, seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSINE_API_KEY", "one two")
    assert serve("--prompt-window", "64").code == 0
    assert seen["prompt_window_tokens"] == 64
    limits = "--max-drafters 0 --timeout 9 --max-requests 3"
    peers = [f"--trust={Identity.from_seed(bytes([number]) * 32).peer_id}" for number in (1, 2)]
    target = f"--target m@{'0a' * 32} --strategy plain --cors-origin https://a.b --host-name api.a.b"
    assert serve(*target.split(), *limits.split(), *peers).code == 0
    assert (seen["max_drafters"], seen["timeout_s"]) == (0, 9.0)
    assert [f"--trust={peer_id}" for peer_id in seen["trust"]] == peers
    assert "--trust takes peer ids, and 'garbage' is none" in serve("--trust", "garbage").err
    assert seen["strategy"] == "plain"
    assert replace(seen["options"], machine=None) == GatewayOptions(
        model_name="m",
        api_keys=("one", "two"),
        cors_origins=("https://a.b",),
        host_names=("api.a.b", socket.gethostname()),
        max_requests=3,
    )
    assert "api_keys" not in repr(seen["options"])


@pytest.mark.usefixtures("seen")
def test_a_gateway_open_to_others_without_a_key_says_so(serve: Run) -> None:
    assert "--api-key restricts" in serve("--host", "0.0.0.0").err
    assert serve("--host", "0.0.0.0", "--api-key", "k").err == ""


@pytest.mark.usefixtures("seen")
def test_several_keys_share_no_past_replies(serve: Run) -> None:
    one = ("--past-replies", "keep", "--api-key", "k")
    assert serve(*one).code == 0
    assert serve(*one, "--api-key", "l").code == 2


def test_a_port_that_is_taken_or_nobody_to_ask_is_bad_usage(serve: Run, run: Run) -> None:
    with server.listening(HOST, 0) as place:
        port = place.getsockname()[1]
        told = serve("--port", str(port))
    assert told.code == 2
    assert told.err.startswith(f"Error: The gateway cannot listen on {HOST} port {port} (")
    told = run("serve", "--port", "0")
    assert (told.code, "--initial-peers" in told.err) == (2, True)


@pytest.mark.parametrize(
    "option",
    [
        *("max-requests=0", "port=70000", "api-key=", "api-key=with space", "api-key=schlüssel", "timeout=0"),
        *("strategy=magic", "max-drafters=-1", "log-format=xml", "target=m@123"),
    ],
)
def test_what_means_nothing_is_bad_usage(serve: Run, option: str) -> None:
    assert serve(f"--{option}").code == 2


def test_a_model_is_called_by_the_name_people_know_and_loopback_is_what_only_this_machine_reaches(
    tmp_path: Path,
) -> None:
    (tmp_path / "my-model").mkdir()
    assert model_name(str(tmp_path / "my-model")) == "my-model"
    assert model_name("org/model") == model_name(f"org/model@{'ab' * 32}") == "org/model"
    with pytest.raises(UsageError):
        model_name("org/model@main")
    hosts = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "192.0.2.1", "example.org")
    assert [is_loopback(host) for host in hosts] == [True] * 4 + [False] * 4
