"""The gateway that `serve` makes of its options, and the options that it refuses."""

import asyncio
import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_node.cli import main
from cosine_node.cli.serve import is_loopback, model_name
from cosine_node.gateway import server
from cosine_node.gateway.app import GatewayOptions
from cosine_protocol.errors import UsageError

pytestmark = pytest.mark.network

PEER: Final = "/ip4/192.0.2.1/tcp/4001"
HOST: Final = "127.0.0.1"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of the gateway and client that would be started; none is."""
    noted: dict[str, Any] = {}

    async def note(
        place: socket.socket, host: str, client: Any, options: GatewayOptions, emit: Any, stop: asyncio.Event
    ) -> None:
        with place:
            noted.update(client, host=host, port=place.getsockname()[1], options=options)
            emit("ready", {"url": server.url_of(place, host), "model": options.model_name})

    monkeypatch.setattr(server, "serve_gateway", note)
    return noted


def serve(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(("serve", "--port", "0", "--initial-peers", PEER, *arguments))
    return int(exit_.value.code or 0)


def test_without_options_it_serves_the_embedded_target_to_this_machine(seen: dict[str, Any]) -> None:
    assert serve() == 0
    assert (seen["host"], seen["target"], seen["strategy"]) == (HOST, "zoo:target", "cosine")
    assert (seen["initial_peers"], seen["max_drafters"], seen["trust"]) == ((PEER,), None, ())
    assert seen["prompt_window_tokens"] is None
    assert seen["share_feedback"] is None
    assert seen["options"] == GatewayOptions(model_name="zoo:target")


def test_options_reach_the_client_and_the_gateway(seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSINE_API_KEY", "one two")
    limits = ("--max-drafters", "0", "--trust", "A", "--trust", "B", "--timeout", "9", "--max-requests", "3")
    assert serve("--share-feedback") == 0 and seen["share_feedback"] is True
    assert serve("--no-share-feedback") == 0 and seen["share_feedback"] is False
    assert serve("--prompt-window", "64") == 0 and seen["prompt_window_tokens"] == 64
    assert serve("--target", f"m@{'0a' * 32}", "--strategy", "plain", *limits, "--cors-origin", "https://a.b") == 0
    assert (seen["max_drafters"], seen["trust"], seen["timeout_s"], seen["strategy"]) == (
        0,
        ("A", "B"),
        9.0,
        "plain",
    )
    assert seen["options"] == GatewayOptions(
        model_name="m", api_keys=("one", "two"), cors_origins=("https://a.b",), max_requests=3
    )
    assert "one" not in repr(seen["options"])


def test_the_ready_line_is_for_machines_where_that_is_asked(
    seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    serve("--log-format", "json")
    ready = json.loads(capsys.readouterr().out)
    assert ready == {"event": "ready", "url": f"http://{HOST}:{seen['port']}", "model": "zoo:target"}
    serve()
    assert capsys.readouterr().out == f"Serving zoo:target at http://{HOST}:{seen['port']}/v1\n"


def test_a_gateway_open_to_others_without_a_key_says_so(
    seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    serve("--host", "0.0.0.0")
    assert "give an --api-key" in capsys.readouterr().err
    serve("--host", "0.0.0.0", "--api-key", "k")
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with server.listening(HOST, 0) as place:
        port = place.getsockname()[1]
        assert serve("--port", str(port)) == 2
    assert capsys.readouterr().err.startswith(f"Error: The gateway cannot listen on {HOST} port {port} (")


def test_nobody_to_ask_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(("serve", "--port", "0"))
    assert exit_.value.code == 2
    assert "--initial-peers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-requests", "0"),
        ("--port", "70000"),
        ("--api-key", ""),
        ("--api-key", "with space"),
        ("--api-key", "schlüssel"),
        ("--timeout", "0"),
        ("--strategy", "magic"),
        ("--max-drafters", "-1"),
        ("--log-format", "xml"),
        ("--target", "m@123"),
    ],
)
def test_what_means_nothing_is_bad_usage(arguments: tuple[str, ...]) -> None:
    assert serve(*arguments) == 2


@dataclass(frozen=True, slots=True)
class Absent:
    """Makes one package look as if it were not installed."""

    package: str

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("module", ["uvicorn", "starlette", "prometheus_client"])
def test_a_missing_package_is_named_with_its_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("cosine_node.gateway", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(module), *sys.meta_path])
    assert serve() == 2
    assert "pip install '.[gateway]'" in capsys.readouterr().err


def test_a_model_is_called_by_the_name_people_know(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert model_name(str(tmp_path / "my-model")) == "my-model"
    assert model_name("org/model") == "org/model"
    assert model_name(f"org/model@{'ab' * 32}") == "org/model"
    with pytest.raises(UsageError):
        model_name("org/model@main")


def test_what_only_this_machine_reaches() -> None:
    hosts = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "192.0.2.1", "example.org")
    assert [is_loopback(host) for host in hosts] == [True] * 4 + [False] * 4
