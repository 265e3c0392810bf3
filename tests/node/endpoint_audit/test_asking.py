"""Endpoints are asked in the dialect that they understand, and their errors are one sentence."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import pytest

from cosine_node.endpoint_audit.asking import AskedEndpoint, EndpointAnswer, EndpointFault, EndpointQuestion
from cosine_node.endpoint_audit.questions import TEMPLATES, draw_questions
from cosine_protocol.errors import UsageError

QUESTIONS: Final = [EndpointQuestion(text, 0.0, seed) for seed, text in enumerate(draw_questions(8, 0))]
Say = Callable[[dict[str, Any], Mapping[str, str]], tuple[int, object]]


@contextmanager
def serving(say: Say) -> Iterator[str]:
    """A server that answers each request by its body and headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = say(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), dict(self.headers))
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def completion(body: Mapping[str, Any]) -> tuple[int, object]:
    tokens = [{"token": "yes", "logprob": -0.5}] if body.get("logprobs") else []
    message = {"role": "assistant", "content": "yes"}
    return 200, {"choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}]}


def asked(say: Say, key: str | None = None) -> tuple[list[EndpointAnswer], AskedEndpoint]:
    with serving(say) as url:
        endpoint = AskedEndpoint.parse(f"{url}#small", model="zoo:target", key=key)
        return asyncio.run(endpoint.ask_all(QUESTIONS)), endpoint


def test_a_seed_draws_different_questions_again() -> None:
    assert draw_questions(100, 3) == draw_questions(100, 3)
    assert len({*draw_questions(400, 3)}) == 400
    assert len({*draw_questions(100, 3)} & {*draw_questions(100, 4)}) < len(TEMPLATES)


def test_all_answers_come_with_their_log_probabilities() -> None:
    answers, endpoint = asked(lambda body, headers: completion(body))
    assert [answer.question for answer in answers] == QUESTIONS
    assert {(answer.text, answer.is_cut, answer.told) for answer in answers} == {("yes", False, (("yes", -0.5),))}
    assert (endpoint.model, endpoint.dropped) == ("small", set())


def test_fields_that_a_server_refuses_are_left_out_or_renamed() -> None:
    def say(body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, object]:
        if "max_tokens" in body:
            return 400, {"error": "Unsupported parameter: use 'max_completion_tokens', not 'max_tokens'"}
        if "seed" in body:
            return 422, {"detail": "extra field seed"}
        return (400, {"error": "no"}) if body.get("logprobs") else completion(body)

    answers, endpoint = asked(say)
    assert {answer.told for answer in answers} == {()}
    assert endpoint.dropped == {"max_tokens", "seed", "logprobs"}


def test_a_busy_server_is_asked_again() -> None:
    seen: set[str] = set()

    def say(body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, object]:
        question = body["messages"][0]["content"]
        if question in seen:
            return completion(body)
        seen.add(question)
        return 429, {"error": "too many"}

    assert len(asked(say)[0]) == len(QUESTIONS)


def test_a_key_is_sent_and_never_shown() -> None:
    def say(body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, object]:
        return completion(body) if headers.get("Authorization") == "Bearer sesame" else (401, {"error": "key"})

    assert "sesame" not in repr(asked(say, key="sesame")[1])
    with pytest.raises(UsageError, match=r"refuses the key: .*--key or COSINE_ENDPOINT_KEY"):
        asked(say)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, {"error": "no such model"}, r"has no chats of 'small': .*no such model"),
        (418, b"<html>", r"does not answer 'small' well: status 418, '<html>'\."),
        (200, b"<html>", r"sends what is no JSON"),
        (200, {"text": "yes"}, r"sends what is no chat completion"),
        (200, {"choices": [{"message": {"content": "a", "reasoning": "b"}}]}, r"it separates texts"),
    ],
)
def test_an_endpoint_that_cannot_be_tried_is_told_in_a_sentence(status: int, body: object, sentence: str) -> None:
    with pytest.raises((UsageError, EndpointFault), match=sentence):
        asked(lambda *_: (status, body))


@pytest.mark.parametrize("place", ["", "localhost:8000", "ftp://a/v1", "http://a/v1?key=1", "http://me@a/v1"])
def test_what_is_no_address_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="is no endpoint"):
        AskedEndpoint.parse(place, model="a", key=None)
