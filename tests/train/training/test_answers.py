"""Answers on disk, and the vocabulary made of them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer, AnswerStore, TargetPrompt, ask_all, most_frequent
from tests.train.training.samples import answer


def test_answers_are_read_as_they_were_added(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    written = [
        answer((4, 5), likely=[[(4, 0.5), (6, 0.25)], [(5, 0.75), (1, 0.25)]], sampling=Sampling(temperature=0.8)),
        answer((9,), prompt=(8,), likely=[[(9, 1.0), (2, 0.5)]], domain="math", sampling=Sampling(seed=2**63)),
    ]
    for one in written:
        store.add(one)
    store.flush()
    for found, one in zip(AnswerStore(tmp_path).read(), written, strict=True):
        assert (found.question, found.domain, found.sampling) == (one.question, one.domain, one.sampling)
        assert (found.prompt, found.tokens) == (one.prompt, one.tokens)
        assert np.array_equal(found.likely_ids, one.likely_ids)
        assert np.array_equal(found.likely_logs, one.likely_logs)


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    prompts = [TargetPrompt(number, "a", (number,), Sampling(seed=number)) for number in range(20)]
    nothing = np.zeros((1, 0))
    asked: list[TargetPrompt] = []

    def until(lasts: int) -> list[Answer]:
        def ask(missing: Iterator[TargetPrompt]) -> Iterator[Answer]:
            for prompt in missing:
                if len(asked) == lasts:
                    raise ConnectionError
                asked.append(prompt)
                yield prompt.answer((7,), nothing.astype(np.int32), nothing.astype(np.float16))

        return ask_all(prompts, tmp_path, ask, lambda _: None)

    with pytest.raises(ConnectionError):
        until(7)
    answers = until(99)
    assert asked == prompts and {one.question for one in answers} == set(range(20))
    assert len(until(0)) == 20


def test_frequent_tokens_are_known_in_rising_order() -> None:
    answers = [answer((40, 9, 40, 9, 40)), answer((9, 77), prompt=(40,))]
    assert most_frequent(answers, tokens=2, shares={}).target_ids == (9, 40)
    assert most_frequent([answer((4, 5), prompt=(1,))], tokens=100, shares={}).target_ids == (1, 4, 5)
    # Likely tokens count by their probability.
    likely = [[(9, 0.6), (50, 0.4)], [(9, 0.5), (60, 0.001)]]
    assert most_frequent([answer((9, 9), prompt=(), likely=likely)], tokens=2, shares={}).target_ids == (9, 50)
