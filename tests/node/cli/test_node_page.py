"""A node that joins with `--page` shows it once it is ready, and goes on without it where that fails."""

import asyncio
import socket
from typing import Any

import pytest

from cosine_node.cli.node_page import run_with_page
from cosine_node.gateway.http import server
from cosine_node.terminal.events import Emit
from cosine_p2p.access import Access
from cosine_protocol.errors import PeerLost
from tests.node.cli.conftest import Run

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def shown(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[tuple[str, Any]]:
    """What is told by a node that is ready at once and ends a little later."""
    told: list[tuple[str, Any]] = []

    async def serve(place: socket.socket, host: str, client: Any, options: Any, emit: Emit, stop: Any) -> None:
        assert (client["target"], options.model_name, options.api_keys) == ("zoo:target", "zoo:target", ())
        if fails:
            raise PeerLost("12D3", "gone")
        emit("ready", {"url": server.url_of(place, host)})
        emit("request", {"id": "1"})
        await asyncio.Event().wait()

    async def run(emit: Emit) -> None:
        emit("loading", {})
        emit("ready", {"maddrs": [ADDRESS]})
        await asyncio.sleep(0.01)

    async def node() -> None:
        listener = server.listening("127.0.0.1", 0)
        await run_with_page(
            run,
            listener,
            access=Access(),
            target="zoo:target",
            emit=lambda event, fields: told.append((event, fields)),
            stop=asyncio.Event(),
        )
        assert listener.fileno() == -1

    monkeypatch.setattr(server, "serve_gateway", serve)
    asyncio.run(node())
    return told


def test_the_page_is_told_once_the_node_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    events = shown(monkeypatch)
    assert [event for event, _ in events] == ["loading", "ready", "page"]
    assert events[-1][1]["url"].startswith("http://127.0.0.1:")


def test_a_node_goes_on_without_its_page(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert [event for event, _ in shown(monkeypatch, fails=True)] == ["loading", "ready"]
    assert "the page cannot be shown" in caplog.text


@pytest.mark.parametrize(("options", "words"), [(("--page", "70000"), "65535")])
def test_a_page_that_cannot_be_is_refused_before_anything_loads(
    run: Run, options: tuple[str, ...], words: str
) -> None:
    told = run("join", "--role", "drafter", "--model", "ngram", *options)
    assert told.code == 2 and words in told.err
