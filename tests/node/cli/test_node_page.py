"""`join --page` shows the page once the node is ready, and goes on without it."""

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from cosine_gateway.http import server
from cosine_node.cli.node_page import page_access, run_with_page
from cosine_p2p.access import Access
from cosine_p2p.storage.identity_file import load_identity
from cosine_protocol.errors import PeerLost
from cosine_terminal.events import Emit
from tests.node.cli.conftest import Run

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def shown(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[tuple[str, Any]]:
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


def test_in_a_private_swarm_the_page_is_a_separate_member(run: Run, tmp_path: Path) -> None:
    founder, file = tmp_path / "founder", tmp_path / "friends.swarm"
    run("swarm", "create", "friends", "--out", str(founder))
    node = json.loads(run("identity", "--json").out)["peer_id"]
    file.write_text(run("swarm", "admit", node, "--folder", str(founder)).out)
    assert "65535" in run("join", "--role", "drafter", "--model", "ngram", "--page", "70000").err
    told = run("join", "--role", "drafter", "--model", "ngram", "--page", "0", "--swarm", str(file))
    assert told.code == 2 and "The page has a separate key" in told.err
    (page,) = re.findall(r"swarm admit (12D3\w+)", told.err)
    assert page != node
    file.write_text(file.read_text() + run("swarm", "admit", page, "--folder", str(founder)).out)
    access = page_access(Access.parse(swarm=file))
    assert access.identity_file is not None and load_identity(access.identity_file).peer_id == page
    assert page_access(Access()) == Access()
