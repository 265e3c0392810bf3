"""Servers with OpenAI's API on this machine, which draft without another copy of their models."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Final

from cosine_engine.openai import SCHEME

PORTS: Final = (11434, 1234, 8080, 8000)
"""Those of Ollama, LM Studio, llama.cpp's server and vLLM."""
SERVER_ANSWER_S: Final = 0.3
"""Bounds each step of an answer from this machine."""
MAX_LIST_BYTES: Final = 1 << 16
MAX_NAME_CHARACTERS: Final = 200
OWN: Final = "cosine"
"""The owner of the models of this project's gateways, whose texts are those to draft."""


def find_servers(ports: tuple[int, ...] = PORTS) -> tuple[str, ...]:
    """The first model of each server at these loopback ports, as values of `--model`. Blocks for a second at most.

    Servers are asked for their models, and sent nothing else.
    """
    with ThreadPoolExecutor(len(ports)) as pool:
        found = zip(ports, pool.map(_models_at, ports), strict=True)
        return tuple(f"{SCHEME}http://127.0.0.1:{port}/v1#{names[0]}" for port, names in found if names)


def _models_at(port: int) -> list[str]:
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=SERVER_ANSWER_S)) as connection:
            connection.request("GET", "/v1/models")
            return names_in(connection.getresponse().read(MAX_LIST_BYTES))
    except (OSError, HTTPException):
        return []


def names_in(body: bytes) -> list[str]:
    """The names in a list of models that can draft for others; none in an invalid list."""
    try:
        listed = json.loads(body)["data"]
        names = [str(one["id"]) for one in listed if one.get("owned_by") != OWN]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []
    return [
        name
        for name in names
        if 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and "embed" not in name.lower()
    ]
