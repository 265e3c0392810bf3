from collections.abc import Iterator
from pathlib import Path

import pytest

from cosine_node.training.answers import Answer
from cosine_node.training.local_target import TargetPrompt
from cosine_node.training.questions import Question
from cosine_node.training.target_source import TEMPERATURE, ask_all, prompts_of, readings_of
from cosine_p2p.text.tokenizer import TextCodec
from tests.node.training.samples import answer


class Letters(TextCodec):
    """A token for each letter, and no files."""

    def __init__(self) -> None:
        pass

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


class Echo:
    """A target that answers with the prompt, until it breaks."""

    def __init__(self, lasts: int = 99) -> None:
        self.asked: list[TargetPrompt] = []
        self._lasts = lasts

    def answers(self, prompts: Iterator[TargetPrompt]) -> Iterator[Answer]:
        for prompt in prompts:
            if len(self.asked) == self._lasts:
                raise ConnectionError
            self.asked.append(prompt)
            given = answer(prompt.tokens, prompt=prompt.tokens, domain=prompt.domain, sampling=prompt.sampling)
            yield Answer(
                question=prompt.question,
                domain=given.domain,
                sampling=given.sampling,
                prompt=given.prompt,
                tokens=given.tokens,
                likely_ids=given.likely_ids,
                likely_logs=given.likely_logs,
            )


QUESTIONS = [Question("a", f"question {number}") for number in range(20)]


def asked(count: int, *, is_asked_twice: bool = False, longest_prompt: int = 99) -> list[TargetPrompt]:
    return prompts_of(
        QUESTIONS, Letters(), answers=count, longest_prompt=longest_prompt, is_asked_twice=is_asked_twice
    )


def test_about_half_of_the_answers_are_sampled() -> None:
    temperatures = [prompt.sampling.temperature for prompt in asked(20)]
    assert set(temperatures) == {0, TEMPERATURE}
    assert len({prompt.question for prompt in asked(20)}) == 20


def test_held_out_questions_are_asked_both_ways() -> None:
    prompts = asked(10, is_asked_twice=True)
    assert len(prompts) == 10
    assert [prompt.sampling.temperature for prompt in prompts] == [0, TEMPERATURE] * 5


def test_long_questions_are_passed_over() -> None:
    assert all(len(prompt.tokens) == 10 for prompt in asked(20, longest_prompt=10))
    assert asked(20, longest_prompt=9) == []


def test_what_follows_a_question_is_read_up_to_a_length() -> None:
    questions = [Question("a", "one", " two three"), Question("a", "nothing follows")]
    (reading,) = readings_of(questions, Letters(), readings=9, longest_prompt=9, longest_answer=4)
    assert "".join(map(chr, reading.tokens)) == "one"
    assert "".join(map(chr, reading.given)) == " two"
    assert readings_of(questions, Letters(), readings=9, longest_prompt=2, longest_answer=4) == []
    assert readings_of(questions, Letters(), readings=0, longest_prompt=9, longest_answer=4) == []


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    broken, whole = Echo(lasts=7), Echo()
    with pytest.raises(ConnectionError):
        ask_all(asked(20), tmp_path, broken.answers, lambda _: None)
    answers = ask_all(asked(20), tmp_path, whole.answers, lambda _: None)
    assert len(whole.asked) == 13
    assert {answer.question for answer in answers} == {prompt.question for prompt in asked(20)}
    assert len(ask_all(asked(20), tmp_path, Echo(lasts=0).answers, lambda _: None)) == 20
