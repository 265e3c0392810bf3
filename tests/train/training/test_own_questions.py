"""The questions that a chat model asks itself: from its template alone, each once, with limited similarity."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from cosine_engine import zoo
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_train.training.answers import Answer, TargetPrompt
from cosine_train.training.local_target import LocalTarget
from cosine_train.training.own_questions import opening_of, write_own_questions
from cosine_train.training.questions import read_questions


@pytest.fixture(scope="module")
def codec() -> TextTokenizer:
    files = TokenizerFiles.read(zoo.tokenizer_folder())
    assert files is not None
    return TextTokenizer(files.files)


def test_the_opening_is_the_template_up_to_where_the_user_speaks(codec: TextTokenizer) -> None:
    whole = codec.encode_chat([{"role": "user", "content": "Where is it?"}])
    opening = opening_of(codec)
    assert whole[: len(opening)] == opening
    assert codec.decode(whole[len(opening) :]).startswith("Where is it?")


class RepeatingTarget:
    """A target that gives each of its questions `times` times."""

    def __init__(self, codec: TextTokenizer, *, times: int) -> None:
        self._codec = codec
        self._times = times

    def likely_after(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        return [(self._codec.encode("W")[0], 1.0)]

    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        nothing = np.zeros((1, 0))
        for prompt in prompts:
            said = self._codec.encode(f"hat is the number {prompt.question // self._times} for?")
            yield prompt.answer((*said, 0), nothing.astype(np.int32), nothing.astype(np.float16))

    def has_ended(self, answer: Answer) -> bool:
        return True


def repeating(codec: TextTokenizer, *, times: int) -> LocalTarget:
    return cast(LocalTarget, RepeatingTarget(codec, times=times))


def test_an_interrupted_writing_goes_on_and_writes_no_question_twice(codec: TextTokenizer, tmp_path: Path) -> None:
    for count in (3, 8):
        target = repeating(codec, times=2)
        file = write_own_questions(target, codec, tmp_path, count=count, seed=0, say=lambda _: None)
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert len(lines) == count
    assert len({line["number"] for line in lines}) == 8
    assert len({line["messages"][0]["content"] for line in lines}) == 8
    assert {question.domain for question in read_questions(file)} == {"self"}


def test_a_target_with_nothing_new_to_ask_is_told(codec: TextTokenizer, tmp_path: Path) -> None:
    target = repeating(codec, times=10**6)
    with pytest.raises(UsageError, match="1 different questions"):
        write_own_questions(target, codec, tmp_path, count=20, seed=0, say=lambda _: None)
