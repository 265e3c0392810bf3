"""`cosine chat`: questions are read, answers shown, and the conversation is what the next question comes with."""

import io
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cosine_cli.chat import converse
from cosine_p2p.replies.parts import Content, Reasoning
from cosine_p2p.request.results import Chunk
from cosine_protocol.errors import GenerationFailed
from tests.node.cli.conftest import Run

BEGUN = [{"role": "system", "content": "Be brief."}]


class Questions(io.StringIO):
    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal


class Stream:
    """An answer of which each word is a chunk; the word `^C` is the user's Ctrl-C."""

    def __init__(self, answer: str) -> None:
        self._answer, self.is_closed = answer, False

    def __iter__(self) -> Iterator[Chunk]:
        for word in self._answer.split():
            if word == "^C":
                raise KeyboardInterrupt
            part = Reasoning(word) if word == "hm" else Content(word)
            yield Chunk(word, (1,), "target", parts=(part,))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


def talk(monkeypatch: pytest.MonkeyPatch, questions: str, *answers: str | Exception) -> list[Any]:
    """The messages with each question."""
    monkeypatch.setattr("sys.stdin", Questions(questions))
    asked: list[Any] = []
    left = iter(answers)

    def answering(messages: Sequence[Any]) -> Any:
        asked.append(list(messages))
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return Stream(answer)

    converse(list(BEGUN), answering)
    return asked


def test_answers_are_shown_and_their_content_is_kept_until_the_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = talk(monkeypatch, "one?\n\ntwo?\nthree?\n", "hm first", "se ^C cond", "^C")
    assert capsys.readouterr().out == "hmfirst\nse [stopped]\n [stopped]\n"
    assert [each["content"] for each in asked[-1]] == ["Be brief.", "one?", "first", "two?", "se", "three?"]
    assert [each["role"] for each in asked[-1]] == ["system", *("user", "assistant") * 2, "user"]


def test_a_failure_ends_a_conversation_that_nobody_sees_and_not_one_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = GenerationFailed("Nobody.")
    with pytest.raises(GenerationFailed):
        talk(monkeypatch, "one?\ntwo?\n", "first", failure)
    monkeypatch.setitem(sys.modules, "readline", SimpleNamespace())
    monkeypatch.setattr(Questions, "is_terminal", True)
    asked = talk(monkeypatch, "one?\ntwo?\nthree?\n", "first", failure, "third")
    assert [each["content"] for each in asked[-1]] == ["Be brief.", "one?", "first", "three?"]
    assert "Nobody." in capsys.readouterr().err


def test_without_peers_it_is_said_before_anything_is_asked(run: Run) -> None:
    told = run("chat")
    assert told.code == 2 and "No initial peers" in told.err
    assert "temperature must" in run("chat", "--temperature", "-1", "--initial-peers", "/ip4/192.0.2.1/tcp/1").err
