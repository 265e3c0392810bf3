"""The questions that a chat model asks itself: from its template alone, each once, not too many alike."""

import json
from pathlib import Path

import pytest

from cosine_node.training.own_questions import MOST_ALIKE, OwnQuestions, opening_of, write_own_questions
from cosine_node.training.questions import read_questions
from cosine_node.training.target_source import Answering, LocalSource
from cosine_p2p.text.tokenizer import TextCodec


@pytest.fixture(scope="module")
def source() -> LocalSource:
    """The toy target, which has a chat template."""
    answering = Answering(slots=16, new_tokens=40)
    return LocalSource(model="zoo:target", answering=answering, layers=(0,), width=None, device="cpu", seed=0)


def test_the_opening_is_the_template_up_to_where_the_user_speaks(source: LocalSource) -> None:
    codec: TextCodec = source.codec
    whole = codec.encode_chat([{"role": "user", "content": "Where is it?"}])
    opening = opening_of(codec)
    assert whole[: len(opening)] == opening
    assert codec.decode(whole[len(opening) :]).startswith("Where is it?")


def test_an_interrupted_writing_goes_on_and_writes_no_question_twice(source: LocalSource, tmp_path: Path) -> None:
    said: list[str] = []
    for count in (3, 8):
        file = write_own_questions(source.target(), source.codec, tmp_path, count=count, seed=0, say=said.append)
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert len(lines) == count
    assert len({line["number"] for line in lines}) == 8
    assert len({line["messages"][0]["content"] for line in lines}) == 8
    assert {question.domain for question in read_questions(file)} == {"self"}


def test_a_question_is_taken_once_whatever_its_case() -> None:
    questions = OwnQuestions()
    assert questions.take("What is the capital of Peru?")
    assert not questions.take("what is  the Capital of Peru?")
    assert not questions.take("Hm?")
    assert len(questions) == 1


def test_only_so_many_begin_alike() -> None:
    questions = OwnQuestions()
    taken = [questions.take(f"Can you help me with number {number}?") for number in range(2 * MOST_ALIKE)]
    assert sum(taken) == MOST_ALIKE
    assert questions.take("Could you help me with something else?")
