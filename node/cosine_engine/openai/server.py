"""A server with OpenAI's completions, and the text that it streams.

Ollama puts a prompt of its `/v1/completions` into the model's chat template, so it is asked at its own endpoint.
"""

import json
import logging
import math
import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Condition, Thread
from typing import Any, Final
from urllib.parse import urlsplit

from cosine_engine.openai import SCHEME
from cosine_engine.other_tokens.text_alignment import TextTokens
from cosine_protocol.errors import CosineError, UsageError

LOG = logging.getLogger(__name__)
KEY_VARIABLE: Final = "COSINE_SERVER_KEY"
"""The name of an environment variable: the key that a server asks for."""
AHEAD_TOKENS: Final = 32
"""Tokens of one request. What follows a wrong token is lost, and drafts are seldom as far ahead of the text."""
CONNECT_S: Final = 5.0
FIRST_S: Final = 60.0
"""Timeout of the first line: a server may read a long prompt, or first load the model."""
NEXT_S: Final = 5.0
"""Timeout of each further line."""
MAX_WRITING_S: Final = 120.0
RETRY_S: Final = 5.0
"""A text asks a server again this long after a fault."""
MAX_LINE_BYTES: Final = 1 << 16
MAX_ANSWER_BYTES: Final = 1 << 22
"""Bounds what is read of an answer: events of 32 tokens have about 16 KiB, and lists of models up to 1 MiB."""
NAMED_MODELS: Final = 8
BEGINNING: Final = "It was late when she came home, and nobody had left a light on in the"
"""Something follows this in any model."""


class ServerFault(CosineError):
    """A server does not answer, refuses, or sends an invalid answer. The text is a clause."""


class ServerEnding(Enum):
    TEXT = auto()
    """The model ended its text."""
    LENGTH = auto()
    """More would follow."""
    FAULT = auto()


@dataclass(frozen=True, slots=True)
class ServerPiece:
    """One line of a stream: its text, the server's tokens in it with their probabilities, if given, and the end."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    ending: ServerEnding | None


def read_piece(line: bytes) -> ServerPiece | None:
    """Read a line of a completion: an event of OpenAI's, or an object of Ollama's. None without text.

    Raises `ServerFault`.
    """
    data = line.strip().removeprefix(b"data:").strip()
    if not data.startswith(b"{"):
        return None
    try:
        told = json.loads(data)
        match told:
            case {"error": error}:
                raise ServerFault(f"it says {str(error)[:200]!r}")
            case {"response": str(text)}:
                choice, why = told, told.get("done_reason")
            case {"choices": [{"text": str(text)} as choice, *_]}:
                why = choice.get("finish_reason")
            case _:
                return None
        # Half a pair of surrogates is no text.
        text.encode()
    except (ValueError, RecursionError) as error:
        raise ServerFault("it sends what is no completion") from error
    ending = None if why is None else ServerEnding.LENGTH if why == "length" else ServerEnding.TEXT
    return ServerPiece(text, _tokens_of(choice.get("logprobs")), ending)


def _tokens_of(told: object) -> tuple[tuple[str, float], ...]:
    """Return tokens and probabilities in the forms of vLLM, llama.cpp and Ollama; none if any is no probability."""
    pairs: list[tuple[object, object]] = []
    match told:
        case {"tokens": [*tokens], "token_logprobs": [*values]}:
            pairs = list(zip(tokens, values, strict=False))
        case {"content": [*entries]} | [*entries]:
            pairs = [(one.get("token"), one.get("logprob")) for one in entries if isinstance(one, Mapping)]
    read = [
        (token, math.exp(value))
        for token, value in pairs
        if isinstance(token, str) and isinstance(value, int | float) and -1e3 < value <= 0.0
    ]
    return tuple(read) if len(read) == len(pairs) else ()


class TextServer:
    """A server at an address such as `http://127.0.0.1:8080/v1`, and the model that it is asked for."""

    def __init__(self, place: str, model: str) -> None:
        """Raises `UsageError` for an invalid address."""
        self.place, self.model = place.rstrip("/"), model
        self.is_ollama = False
        self._is_away = False
        try:
            parts = urlsplit(self.place)
            self._kind: type[HTTPConnection] = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme]
            self._host, self._port, self._path = parts.hostname, parts.port, parts.path
        except (KeyError, ValueError):
            self._host = None
        if not self._host or parts.query or parts.username:
            raise UsageError(f"{place!r} is no address of a server; one is {SCHEME}http://127.0.0.1:8080/v1#MODEL.")

    @classmethod
    def find(cls, name: str) -> "TextServer":
        """Return the server of `openai:URL#MODEL`, whose only model needs no name. Raises `UsageError`."""
        place, _, model = name.removeprefix(SCHEME).partition("#")
        server = cls(place, model)
        place = server.place
        try:
            listed = server._answer(f"{server._path}/models").get("data")
            with suppress(ServerFault):
                server.is_ollama = "version" in server._answer("/api/version")
        except ServerFault as fault:
            raise UsageError(f"{place} cannot draft: {fault}; start the server, or correct --model.") from fault
        models = [str(one.get("id")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        if not model and len(models) == 1:
            server.model = models[0]
        elif not {model, f"{model}:latest"} & {*models}:
            said = ", ".join([*models[:NAMED_MODELS], *["..."][: len(models) - NAMED_MODELS]]) or "none"
            lacks = f"has no model {model!r}" if model else "has several models or none"
            raise UsageError(f"{place} {lacks}; name one with {SCHEME}{place}#MODEL: {said}.")
        return server

    def token_s(self, target: TextTokens) -> float:
        """Measure the seconds for one of the target's tokens. Raises `UsageError`."""
        # The first request may load the model.
        for _ in range(2):
            began_s = time.monotonic()
            writing = Writing(self, BEGINNING)
            writing.wait(MAX_ANSWER_BYTES, until_s=began_s + MAX_WRITING_S)
            if writing.fault or not writing.text:
                why = writing.fault or "it writes nothing"
                raise UsageError(f"{self.place} cannot draft with {self.model!r}: {why}.")
        return (time.monotonic() - began_s) / max(1, len(target.encode(writing.text)))

    def connect(self) -> HTTPConnection:
        connection = self._kind(self._host or "", self._port, timeout=CONNECT_S)
        connection.connect()
        return connection

    def complete(self, connection: HTTPConnection, prompt: str) -> HTTPResponse:
        """Return the lines of a text's continuation. Raises `ServerFault`, or errors of sockets and HTTP."""
        asked: dict[str, Any] = {"model": self.model, "prompt": prompt, "stream": True}
        if self.is_ollama:
            asked |= {"raw": True, "logprobs": True, "options": {"temperature": 0, "num_predict": AHEAD_TOKENS}}
            return self._ask(connection, "/api/generate", asked)
        asked |= {"temperature": 0, "max_tokens": AHEAD_TOKENS, "logprobs": 1}
        return self._ask(connection, f"{self._path}/completions", asked)

    def note(self, fault: str | None) -> None:
        """Log when the server begins to fail, and when it writes again."""
        if self._is_away is not (fault is not None):
            LOG.warning("%s %s", self.place, "drafts again" if fault is None else f"does not draft now: {fault}")
        self._is_away = fault is not None

    def _answer(self, path: str) -> Mapping[str, Any]:
        """Return the JSON object at a path of the server. Raises `ServerFault`."""
        try:
            with closing(self.connect()) as connection:
                told = json.loads(self._ask(connection, path).read(MAX_ANSWER_BYTES))
        except (OSError, HTTPException) as error:
            raise ServerFault(f"it does not answer ({error or type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise ServerFault("it is no server of OpenAI's kind") from error
        return told if isinstance(told, dict) else {}

    def _ask(self, connection: HTTPConnection, path: str, body: Mapping[str, Any] | None = None) -> HTTPResponse:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ServerFault(f"it answers {response.status} {response.read(200).decode(errors='replace')!r}")
        return response


class Writing:
    """The text that a server writes after `prompt`, read by a thread.

    `text` grows, `starts` are the beginnings of the server's tokens in it with their probabilities, if given, and
    `ending` is None until the text has ended. `fault` is a clause.
    """

    def __init__(self, server: TextServer, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self.starts: list[tuple[int, float]] = []
        self.ending: ServerEnding | None = None
        self.fault: str | None = None
        self._ended_at_s = 0.0
        self._server = server
        self._changed = Condition()
        self._wire: socket.socket | None = None
        self._is_cut = False
        self.go_on()

    def go_on(self) -> None:
        """Request a continuation of the ended text."""
        self.ending = self.fault = None
        Thread(target=self._run, name="text server", daemon=True).start()

    def wait(self, characters: int, *, until_s: float) -> None:
        """Return once there are more characters than that, at the end, or at a time of `time.monotonic`."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.text) > characters or self.ending is not None,
                max(0.0, until_s - time.monotonic()),
            )

    def cut(self) -> None:
        """Close the connection, at which servers stop writing."""
        self._is_cut = True
        if (wire := self._wire) is not None:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    @property
    def is_resting(self) -> bool:
        """True for some seconds after a fault."""
        return self.ending is ServerEnding.FAULT and time.monotonic() < self._ended_at_s + RETRY_S

    def _run(self) -> None:
        ending = ServerEnding.FAULT
        try:
            with closing(self._server.connect()) as connection:
                ending = self._read(connection)
        except (OSError, HTTPException, ValueError, ServerFault) as error:
            self.fault = str(error) or type(error).__name__
        with self._changed:
            self._ended_at_s = time.monotonic()
            self.ending = ending
            self._changed.notify_all()
        if not self._is_cut:
            self._server.note(self.fault)

    def _read(self, connection: HTTPConnection) -> ServerEnding:
        """Read one answer. Text that it does not end is ended by the model."""
        self._wire = wire = connection.sock
        wire.settimeout(FIRST_S)
        before, bytes_read, until_s = len(self.text), 0, time.monotonic() + MAX_WRITING_S
        response = None if self._is_cut else self._server.complete(connection, self.prompt + self.text)
        while response and not self._is_cut and (line := response.readline(MAX_LINE_BYTES)):
            bytes_read += len(line)
            if len(line) == MAX_LINE_BYTES or bytes_read > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                raise ServerFault("its answer has no end")
            if (piece := read_piece(line)) is None:
                continue
            wire.settimeout(NEXT_S)
            with self._changed:
                start = len(self.text)
                for token, probability in piece.tokens:
                    self.starts.append((start, probability))
                    start += len(token)
                self.text += piece.text
                self._changed.notify_all()
            if piece.ending is not None:
                return piece.ending if len(self.text) > before else ServerEnding.TEXT
        return ServerEnding.TEXT
