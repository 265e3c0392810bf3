"""A server with OpenAI's completions, and what it writes after a text.

Ollama puts a prompt of its `/v1/completions` into the model's chat template, so it is asked at its own endpoint.
"""

import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Condition, Thread
from typing import Any, Final
from urllib.parse import urlsplit

from cosine_node.engine.openai import SCHEME
from cosine_node.engine.text_alignment import TYPICAL_TEXT, TextTokens
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
MAX_LINE_BYTES: Final = 1 << 16
MAX_ANSWER_BYTES: Final = 1 << 20
"""Bounds what is read of an answer: events of 32 tokens have about 16 KiB."""
NAMED_MODELS: Final = 8


class ServerFault(CosineError):
    """A server does not answer, refuses, or sends what makes no sense. The text is a clause."""


class Ending(Enum):
    TEXT = auto()
    """The model ended its text."""
    LENGTH = auto()
    """More would follow."""
    FAULT = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """One line of a stream: its text, the server's tokens in it with their probabilities, if told, and the end."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    ending: Ending | None


def read_piece(line: bytes) -> Piece | None:
    """Read a line of a completion: an event of OpenAI's, or an object of Ollama's. None if it tells no text.

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
    ending = None if why is None else Ending.LENGTH if why == "length" else Ending.TEXT
    return Piece(text, _tokens_of(choice.get("logprobs")), ending)


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
    """A server at `url`, with a path such as `/v1`, and the model that it is asked for."""

    def __init__(self, url: str, model: str) -> None:
        """Raises `UsageError` for what is no address."""
        self.place = url.rstrip("/")
        self.model = model
        self.is_ollama = False
        self._is_away = False
        try:
            parts = urlsplit(self.place)
            self._host, self._port = parts.hostname or "", parts.port
            self._is_secure, self._path = parts.scheme == "https", parts.path
            is_address = parts.scheme in ("http", "https") and self._host and not parts.query and not parts.username
        except ValueError:
            is_address = False
        if not is_address:
            raise UsageError(f"{url!r} is no address of a server; one is {SCHEME}http://127.0.0.1:11434/v1#MODEL.")

    @classmethod
    def find(cls, name: str) -> "TextServer":
        """Return the server of `openai:URL#MODEL`, whose only model needs no name. Raises `UsageError`."""
        url, _, model = name.removeprefix(SCHEME).partition("#")
        server = cls(url, model)
        try:
            listed = server._answer(f"{server._path}/models").get("data")
            with suppress(ServerFault):
                server.is_ollama = isinstance(server._answer("/api/version").get("version"), str)
        except ServerFault as fault:
            raise UsageError(
                f"{server.place} cannot draft: {fault}; start the server, or correct --model."
            ) from fault
        models = [one["id"] for one in listed or () if isinstance(one, dict) and isinstance(one.get("id"), str)]
        if not model and len(models) == 1:
            server.model = models[0]
        elif model not in models and f"{model}:latest" not in models:
            said = ", ".join(models[:NAMED_MODELS]) + (", ..." if len(models) > NAMED_MODELS else "")
            lacks = f"has no model {model!r}" if model else "has several models or none"
            raise UsageError(
                f"{server.place} {lacks}; name one with {SCHEME}{server.place}#MODEL: {said or 'none'}."
            )
        return server

    def token_s(self, target: TextTokens) -> float:
        """Return the seconds that it takes to write one of the target's tokens. Raises `UsageError`."""
        writing, began_s = Writing(self, TYPICAL_TEXT), time.monotonic()
        writing.wait(0, until_s=began_s + FIRST_S)
        first, first_s = writing.text, time.monotonic()
        writing.wait(MAX_ANSWER_BYTES, until_s=first_s + FIRST_S)
        ended_s = time.monotonic()
        writing.cut()
        if writing.fault or not writing.text:
            raise UsageError(
                f"{self.place} cannot draft with {self.model!r}: {writing.fault or 'it writes nothing'}."
            )
        # Without the time to read the text, unless all came at once.
        tokens = len(target.encode(writing.text[len(first) :]))
        return (ended_s - first_s) / tokens if tokens else (ended_s - began_s) / max(1, len(target.encode(first)))

    @contextmanager
    def completing(self, prompt: str, connected: Callable[[socket.socket], None]) -> Iterator[HTTPResponse]:
        """Yield the lines of what follows a text. Raises `ServerFault`, or errors of sockets and HTTP."""
        asked: dict[str, Any] = {"model": self.model, "prompt": prompt, "stream": True}
        if self.is_ollama:
            options = {"temperature": 0, "num_predict": AHEAD_TOKENS}
            asked |= {"raw": True, "logprobs": True, "options": options}
        else:
            asked |= {"temperature": 0, "max_tokens": AHEAD_TOKENS, "logprobs": 1}
        path = "/api/generate" if self.is_ollama else f"{self._path}/completions"
        with self._asked(path, asked, connected) as response:
            yield response

    def note(self, fault: str | None) -> None:
        """Tell the log when the server begins to fail, and when it writes again."""
        if fault is not None and not self._is_away:
            LOG.warning("%s does not draft now: %s", self.place, fault)
        elif fault is None and self._is_away:
            LOG.warning("%s drafts again", self.place)
        self._is_away = fault is not None

    def _answer(self, path: str) -> Mapping[str, Any]:
        """Return an object that the server has at a path. Raises `ServerFault`."""
        try:
            with self._asked(path) as response:
                told = json.loads(response.read(MAX_ANSWER_BYTES))
        except (OSError, HTTPException) as error:
            raise ServerFault(f"it does not answer ({error or type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise ServerFault("it is no server of OpenAI's kind") from error
        return told if isinstance(told, dict) else {}

    @contextmanager
    def _asked(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        connected: Callable[[socket.socket], None] = lambda wire: None,
    ) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._is_secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            connection.connect()
            connected(connection.sock)
            data = None if body is None else json.dumps(body)
            connection.request("GET" if data is None else "POST", path, data, headers)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(MAX_LINE_BYTES)[:200].decode(errors="replace")
                raise ServerFault(f"it answers {response.status} {said!r}")
            yield response
        finally:
            connection.close()


class Writing:
    """What a server writes after `prompt`, which a thread reads as it comes.

    `text` grows, `starts` are the beginnings of the server's tokens in it with their probabilities, if it tells
    them, and `ending` is None while more may come, and set after the text. `fault` is a clause.
    """

    def __init__(self, server: TextServer, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self.starts: list[tuple[int, float]] = []
        self.ending: Ending | None = None
        self.fault: str | None = None
        self.ended_at_s = 0.0
        self._server = server
        self._changed = Condition()
        self._wire: socket.socket | None = None
        self._is_cut = False
        self.go_on()

    def go_on(self) -> None:
        """Ask for more after the text so far, which has ended."""
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

    def _run(self) -> None:
        ending = Ending.FAULT
        try:
            ending = self._read()
        except (OSError, HTTPException, ServerFault) as error:
            self.fault = str(error) or type(error).__name__
        with self._changed:
            self.ended_at_s = time.monotonic()
            self.ending = ending
            self._changed.notify_all()
        if not self._is_cut:
            self._server.note(self.fault)

    def _read(self) -> Ending:
        """Read one answer. Text that it does not end is ended by the model."""
        before, bytes_read, until_s = len(self.text), 0, time.monotonic() + MAX_WRITING_S
        with self._server.completing(self.prompt + self.text, self._connected) as response:
            while not self._is_cut and (line := response.readline(MAX_LINE_BYTES)):
                bytes_read += len(line)
                if len(line) == MAX_LINE_BYTES or bytes_read > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                    raise ServerFault("its answer has no end")
                if (piece := read_piece(line)) is None:
                    continue
                assert self._wire is not None
                self._wire.settimeout(NEXT_S)
                with self._changed:
                    start = len(self.text)
                    for token, probability in piece.tokens:
                        self.starts.append((start, probability))
                        start += len(token)
                    self.text += piece.text
                    self._changed.notify_all()
                if piece.ending is not None:
                    return piece.ending if len(self.text) > before else Ending.TEXT
        return Ending.TEXT

    def _connected(self, wire: socket.socket) -> None:
        wire.settimeout(FIRST_S)
        self._wire = wire
        if self._is_cut:
            raise ServerFault("it is not needed any more")
