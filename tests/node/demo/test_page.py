"""The page of the demo after its races."""

import asyncio
import os
import sys
from typing import Any

import pytest

from cosine_gateway.http import server
from cosine_node.cli.demo import offering


def test_the_page_is_offered_until_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    person, terminal = os.openpty()

    async def serve(place: Any, host: str, client: Any, options: Any, emit: Any, stop: asyncio.Event) -> None:
        assert (client, options.model_name) == (
            {"initial_peers": ("ADDRESS",), "target": "zoo:target"},
            "zoo:target",
        )
        with place:
            emit("ready", {"url": server.url_of(place, host)})
            assert not stop.is_set()
            os.write(person, b"\n")
            await stop.wait()

    monkeypatch.setattr(server, "serve_gateway", serve)
    with os.fdopen(terminal, "r") as keys:
        monkeypatch.setattr(sys, "stdin", keys)

        async def offer() -> None:
            await offering(said.append, model_name="zoo:target")("ADDRESS", "zoo:target")

        asyncio.run(offer())
    os.close(person)
    (line,) = said
    assert "with a page at http://127.0.0.1:" in line and "press Enter to end it" in line
