"""A server on loopback that knows one text, and continues it in the form of one of the real servers."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.engine.recited import TEXT

LOGPROB: Final = -0.25
PIECES: Final = re.compile(r"\s?\w+|\W")
"""About the tokens of a server: words with the blank before them."""
Answer = Callable[["RecitingServer", BaseHTTPRequestHandler], None]


def llama_event(text: str, why: str | None) -> dict[str, Any]:
    told = {"content": [{"id": 1, "token": text, "logprob": LOGPROB}]} if text else None
    return {"choices": [{"text": text, "index": 0, "logprobs": told, "finish_reason": why}]}


def vllm_event(text: str, why: str | None) -> dict[str, Any]:
    told = {"tokens": [text], "token_logprobs": [LOGPROB], "text_offset": [0], "top_logprobs": [{text: LOGPROB}]}
    return {"choices": [{"index": 0, "text": text, "logprobs": told, "finish_reason": why, "stop_reason": None}]}


def plain_event(text: str, why: str | None) -> dict[str, Any]:
    """As of servers that tell no probabilities."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": why}]}


def ollama_object(text: str, why: str | None) -> dict[str, Any]:
    told = {"logprobs": [{"token": text, "logprob": LOGPROB}]} if text else {}
    return {"model": "m", "response": text, "done": why is not None, **told} | ({"done_reason": why} if why else {})


class RecitingServer(ThreadingHTTPServer):
    """After a beginning of its text it continues the text, and after anything else it writes question marks.

    `answer`, if set, answers the next requests for a text instead. `prompts` are those of all requests.
    """

    daemon_threads = True

    def __init__(
        self,
        event: Callable[[str, str | None], dict[str, Any]] = llama_event,
        *,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.event = event
        self.text = TEXT
        self.models: tuple[str, ...] = ("m",)
        self.answer: Answer | None = None
        self.prompts: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = threading.Event()
        """Set when a client has closed the connection of an unfinished answer."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def __exit__(self, *args: object) -> None:
        self.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error."""

    def pieces(self, prompt: str) -> Iterator[str]:
        if self.text.startswith(prompt):
            yield from PIECES.findall(self.text[len(prompt) :])
        else:
            yield from "?" * 100


class _Handler(BaseHTTPRequestHandler):
    server: RecitingServer

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        served = self.server
        told: dict[str, Any] | None = None
        if self.path == "/v1/models":
            told = {"object": "list", "data": [{"id": name, "object": "model"} for name in served.models]}
        elif self.path == "/api/version" and served.event is ollama_object:
            told = {"version": "0.12.11"}
        self.send_response(404 if told is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(told or {"error": "not found"}).encode())

    def do_POST(self) -> None:
        served = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        served.asked.append(asked)
        served.prompts.append(asked["prompt"])
        served.keys.append(self.headers.get("Authorization"))
        if served.answer is not None:
            served.answer(served, self)
            return
        is_ollama = served.event is ollama_object
        if (self.path == "/api/generate") is not is_ollama:
            self.send_error(404)
            return
        most = asked["options"]["num_predict"] if is_ollama else asked["max_tokens"]
        self.send_response(200)
        self.end_headers()
        pieces = list(served.pieces(asked["prompt"]))
        for piece in pieces[:most]:
            self.write(served.event(piece, None))
        self.write(served.event("", "length" if len(pieces) > most else "stop"))
        if not is_ollama:
            self.wfile.write(b"data: [DONE]\n\n")

    def write(self, told: dict[str, Any]) -> None:
        line = json.dumps(told).encode()
        self.wfile.write(line + b"\n" if self.server.event is ollama_object else b"data: " + line + b"\n\n")


def says(*lines: bytes, status: int = 200, waits: bool = False) -> Answer:
    """Return an answer of these bytes, after which the connection stays open if it `waits`, until it is left."""

    def answer(server: RecitingServer, handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.send_response(status)
            handler.end_headers()
            handler.wfile.write(b"".join(lines))
            is_left = waits and not handler.rfile.read(1)
        except OSError:  # it was left before the answer was written
            is_left = True
        if is_left:
            server.left.set()

    return answer


def event(text: str, why: str | None = None) -> bytes:
    return b"data: " + json.dumps(plain_event(text, why)).encode() + b"\n\n"
