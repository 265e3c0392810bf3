"""A target as training needs it: what it is asked, and the drafters that are made of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.training.answers import Answer
from cosine_node.training.local_target import TargetPrompt
from cosine_node.training.questions import Question
from cosine_node.training.target_source import (
    TEMPERATURE,
    Answering,
    LocalSource,
    Shape,
    SwarmSource,
    ask_all,
    prompts_of,
    readings_of,
)
from cosine_p2p.text.tokenizer import TextCodec
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.test_blocking import joining
from tests.node.training.samples import answer

KNOWN = DraftVocabulary((5, 6, 70))
ANSWERING = Answering(slots=2, new_tokens=4)


def local(model: str, *, width: int | None = None) -> LocalSource:
    return LocalSource(model=model, answering=ANSWERING, layers=(0, -1), width=width, device="cpu", seed=0)


def test_a_drafter_has_the_targets_layers_or_a_width_of_its_own() -> None:
    taken, new = (local("zoo:target", width=width).new_drafter(KNOWN) for width in (None, 64))
    assert (taken.config.hidden_size, taken.config.num_hidden_layers, taken.config.vocab_size) == (256, 2, 4)
    assert (new.config.hidden_size, new.config.num_hidden_layers, new.config.vocab_size) == (64, 2, 4)
    assert new.config.max_position_embeddings == taken.config.max_position_embeddings


def test_a_small_width_has_one_head_and_some_feed_forward() -> None:
    shape = Shape(layers=1, width=8, vocabulary_size=4, context_tokens=16)
    assert (shape.heads, shape.feed_forward_width) == (1, 32)


def test_the_tokenizer_is_the_targets() -> None:
    assert local("zoo:target").codec.encode("one two")


def test_a_target_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        _ = local(str(zoo.folder("draft-code"))).codec


def test_a_target_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((zoo.folder("target") / "config.json").read_bytes())
    with pytest.raises(UsageError, match="cannot be read"):
        local(str(tmp_path)).target()


def test_a_swarm_gives_its_tokenizer_and_drafters_begin_untrained() -> None:
    source = SwarmSource(join=joining(), options={}, answering=ANSWERING, layers=1, width=64, seed=0)
    assert source.codec.encode("ab")
    assert source.target() is source.target()
    assert source.new_drafter(KNOWN).config.hidden_size == 64


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
