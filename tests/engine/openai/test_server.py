"""A server of texts: what it may say, and what comes of it when it is not there or says nonsense."""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cosine_engine.openai import server as server_module
from cosine_engine.openai.server import (
    AHEAD_TOKENS,
    KEY_VARIABLE,
    MAX_LINE_BYTES,
    ServerEnding,
    ServerFault,
    ServerPiece,
    TextServer,
    Writing,
    read_piece,
)
from cosine_protocol.errors import UsageError
from tests.engine.openai.reciting_server import (
    LOGPROB,
    Answer,
    RecitingServer,
    event,
    llama_event,
    ollama_object,
    plain_event,
    says,
    vllm_event,
)
from tests.engine.recited import PAIRS, TEXT
from tests.waiting import wait_until

SURE = math.exp(LOGPROB)
BEGUN = TEXT[:40]


@pytest.fixture
def reciting() -> Iterator[RecitingServer]:
    with RecitingServer() as server:
        yield server


def written(server: RecitingServer) -> Writing:
    writing = Writing(TextServer(server.place, "m"), BEGUN)
    writing.wait(1 << 30, until_s=time.monotonic() + 20)
    return writing


@pytest.mark.parametrize("form", [llama_event, vllm_event, ollama_object, plain_event])
def test_the_lines_of_each_server_are_read(form: Callable[[str, str | None], dict[str, Any]]) -> None:
    tokens = () if form is plain_event else ((" word", SURE),)
    data = b"" if form is ollama_object else b"data: "
    assert read_piece(data + json.dumps(form(" word", None)).encode() + b"\n") == ServerPiece(" word", tokens, None)
    ends = [read_piece(data + json.dumps(form("", why)).encode()) for why in ("stop", "length")]
    assert [piece and piece.ending for piece in ends] == [ServerEnding.TEXT, ServerEnding.LENGTH]


@pytest.mark.parametrize("line", [b"", b"\n", b": ping", b"event: x", b"data: [DONE]", b"{}", b'{"choices": []}'])
def test_lines_without_text_are_passed_over(line: bytes) -> None:
    assert read_piece(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b"data: {",
        b'{"choices": [{"text": "\xff"}]}',
        b'{"choices": [{"text": "\\ud800"}]}',
        b'{"error": {"message": "overloaded"}}',
        b'{"a":' * 50_000,
        b'{"choices": [{"text": "a", "index": ' + b"9" * 5000 + b"}]}",
    ],
)
def test_nonsense_is_a_fault(line: bytes) -> None:
    with pytest.raises(ServerFault):
        read_piece(line)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1.5", '"-1"', "null", "-1e999", "-" + "9" * 400])
def test_what_is_no_probability_is_none(value: str) -> None:
    line = (
        '{"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.1, ' + value + "]}}]}"
    )
    assert read_piece(line.encode()) == ServerPiece("ab", (), None)


def test_a_server_is_found_with_its_model(reciting: RecitingServer) -> None:
    assert TextServer.find(f"openai:{reciting.place}#m").model == "m"
    assert TextServer.find(f"openai:{reciting.place}/").model == "m"
    reciting.models = ("a:latest", "b")
    assert TextServer.find(f"openai:{reciting.place}#a").model == "a"
    assert not TextServer.find(f"openai:{reciting.place}#b").is_ollama
    reciting.event = ollama_object
    assert TextServer.find(f"openai:{reciting.place}#b").is_ollama


def refusal(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        TextServer.find(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_that_is_not_there_or_lacks_the_model_is_refused_in_a_sentence(reciting: RecitingServer) -> None:
    reciting.models = tuple("abcdefghij")
    assert "has no model 'z'; name one with" in refusal(f"openai:{reciting.place}#z")
    assert refusal(f"openai:{reciting.place}").endswith("a, b, c, d, e, f, g, h, ....")
    assert "it answers 404" in refusal(f"openai:{reciting.place}/v2#a")
    reciting.close()
    assert "it does not answer ([Errno" in refusal(f"openai:{reciting.place}#a")
    for name in (
        "m",
        "ftp://a/v1#m",
        "http://#m",
        "http://a:b/v1",
        "http://[a/v1",
        "http://key@a/v1",
        "http://a?b",
    ):
        assert "is no address of a server" in refusal(f"openai:{name}")


def test_its_pace_is_measured_and_one_that_writes_nothing_is_refused(reciting: RecitingServer) -> None:
    server = TextServer(reciting.place, "m")
    assert 0.0 < server.token_s(PAIRS) < 1.0
    reciting.answer = says(event("all at once"))
    assert 0.0 < server.token_s(PAIRS) < 1.0
    for answer, why in [(says(), "it writes nothing"), (says(b"No.", status=401), "it answers 401 'No.'")]:
        reciting.answer = answer
        with pytest.raises(UsageError, match=f"cannot draft with 'm': {why}"):
            server.token_s(PAIRS)


def test_a_request_asks_for_few_tokens_greedily_and_ollama_for_the_text_as_it_is(
    reciting: RecitingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    writing = written(reciting)
    assert (writing.ending, writing.prompt + writing.text) == (ServerEnding.LENGTH, TEXT[: 40 + len(writing.text)])
    assert len(writing.starts) == AHEAD_TOKENS
    [asked] = reciting.asked
    assert (asked["temperature"], asked["max_tokens"], asked["stream"]) == (0, AHEAD_TOKENS, True)
    assert reciting.keys == ["Bearer secret"]
    reciting.event = ollama_object
    server = TextServer.find(f"openai:{reciting.place}#m")
    more = Writing(server, BEGUN)
    more.wait(1 << 30, until_s=time.monotonic() + 20)
    assert (more.text, more.starts) == (writing.text, writing.starts)
    assert (reciting.asked[1]["raw"], reciting.asked[1]["options"]["temperature"]) == (True, 0)
    more.go_on()
    more.wait(len(writing.text), until_s=time.monotonic() + 20)
    assert TEXT.startswith(BEGUN + more.text) and len(more.text) > len(writing.text)


HOSTILE: dict[str, tuple[Answer, str]] = {
    "no JSON": (says(event("a"), b"data: {oops\n"), "it sends what is no completion"),
    "a page": (says(b"<html>" * 50_000), "its answer has no end"),
    "a long line": (says(event("a" * MAX_LINE_BYTES)), "its answer has no end"),
    "no end": (says(event("a" * 10_000) * 500), "its answer has no end"),
    "an error": (says(b'data: {"error": "no memory"}\n'), "it says 'no memory'"),
    "a status": (says(b"busy", status=503), "it answers 503 'busy'"),
    "silence": (says(event("a"), waits=True), "timed out"),
}


@pytest.mark.parametrize(("answer", "fault"), HOSTILE.values(), ids=HOSTILE)
def test_nonsense_ends_a_text_and_is_bounded(
    reciting: RecitingServer, monkeypatch: pytest.MonkeyPatch, answer: Answer, fault: str
) -> None:
    monkeypatch.setattr(server_module, "NEXT_S", 0.1)
    reciting.answer = answer
    writing = written(reciting)
    assert (writing.ending, writing.fault) == (ServerEnding.FAULT, fault)
    assert len(writing.text) <= server_module.MAX_ANSWER_BYTES


def test_an_answer_without_more_text_is_the_end_of_it(reciting: RecitingServer) -> None:
    for answer in (says(), says(event("", "length")), says(event("a"))):
        reciting.answer = answer
        assert written(reciting).ending is ServerEnding.TEXT


@pytest.mark.parametrize("begun", [says(event("a"), waits=True), says(waits=True)], ids=["amid", "before any"])
def test_a_text_that_is_not_needed_is_left_at_once(reciting: RecitingServer, begun: Answer) -> None:
    reciting.answer = begun
    writing = Writing(TextServer(reciting.place, "m"), BEGUN)
    wait_until(lambda: bool(reciting.prompts))
    writing.cut()
    assert reciting.left.wait(5)
    writing.wait(1 << 30, until_s=time.monotonic() + 5)
    assert writing.ending is not None


def test_the_log_says_once_that_a_server_fails_and_once_that_it_writes_again(
    reciting: RecitingServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = TextServer(reciting.place, "m")

    def write() -> None:
        Writing(server, BEGUN).wait(1 << 30, until_s=time.monotonic() + 20)
        deadline_s = time.monotonic() + 0.2
        while time.monotonic() < deadline_s:
            time.sleep(0.01)

    reciting.answer = says(status=503)
    write()
    write()
    reciting.answer = None
    write()
    write()
    said = [record.getMessage().removeprefix(reciting.place) for record in caplog.records]
    assert said == [" does not draft now: it answers 503 ''", " drafts again"]
