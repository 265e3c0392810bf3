"""Servers on this machine are found by their lists of models."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from cosine_node.advice.servers import find_servers, names_in


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and what it was asked."""
    asked: list[str] = []

    class Ollama(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.requestline)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "nomic-embed"}, {"id": "llama3.2:3b"}]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ollama) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port, asked
        running.shutdown()


@pytest.mark.network
def test_a_server_is_asked_for_its_models_and_nothing_else(server: tuple[int, list[str]]) -> None:
    port, asked = server
    assert find_servers((1, port)) == (f"openai:http://127.0.0.1:{port}/v1#llama3.2:3b",)
    assert asked == ["GET /v1/models HTTP/1.1"]


@pytest.mark.parametrize("told", [None, [], {"data": {}}, {"data": [1]}, {"data": [{"id": "a\x1b[2J"}]}])
def test_what_is_no_model_is_not_offered(told: Any) -> None:
    assert names_in(json.dumps(told).encode()) == names_in(b"\xff") == []


def test_the_gateways_of_this_project_are_not_offered() -> None:
    assert names_in(json.dumps({"data": [{"id": "cosine", "owned_by": "cosine"}]}).encode()) == []
