"""First choices along a target's answers, counted by kind; the toy family is measured whole."""

from typing import Any

import numpy as np
import pytest

from cosine_lab.experiments.agreement import COPYING, findings_of, rows_of
from cosine_node import zoo
from cosine_node.training.answers import Answer
from cosine_protocol.request import Sampling
from tests.lab.experiments.quick import quick_result, silent


def answer(kind: str, tokens: tuple[int, ...], temperature: float = 0.0) -> Answer:
    return Answer(
        question=1,
        domain=kind,
        sampling=Sampling(temperature=temperature),
        prompt=(1, 2),
        tokens=tokens,
        likely_ids=np.zeros((len(tokens), 0), np.int32),
        likely_logs=np.zeros((len(tokens), 0), np.float16),
    )


def test_anything_that_guesses_is_counted_along_each_answer() -> None:
    """A head of the verifier would be one more entry."""
    answers = [answer("chat", (3, 4, 5)), answer("coding", (6,))]
    rows = rows_of(answers, {"first": lambda one: 1, "all": lambda one: len(one.tokens)}, say=silent)
    assert [(found["kind"], found["tokens"], found["right"]) for found in rows] == [
        ("chat", 3, {"first": 1, "all": 3}),
        ("coding", 1, {"first": 1, "all": 1}),
    ]


def test_shares_are_of_tokens_and_have_intervals_over_questions() -> None:
    def row(kind: str, right: int, tokens: int, temperature: float = 0.0) -> dict[str, Any]:
        return {"kind": kind, "temperature": temperature, "tokens": tokens, "right": {COPYING: right}}

    found = findings_of([row("chat", 1, 4), row("chat", 3, 4), row("coding", 8, 8), row("chat", 1, 2, 0.8)], seed=0)
    assert found["kinds"] == [
        {"kind": "chat", "temperature": 0.0, COPYING: 0.5},
        {"kind": "chat", "temperature": 0.8, COPYING: 0.5},
        {"kind": "coding", "temperature": 0.0, COPYING: 1.0},
    ]
    greedy, sampled = found["drafters"]
    assert (greedy["drafter"], greedy["right"], greedy["tokens"]) == (COPYING, 0.75, 16)
    assert greedy["interval"][0] <= 0.75 <= greedy["interval"][1]
    assert sampled["right"] == 0.5


@pytest.mark.thorough
def test_every_drafter_of_a_family_is_measured() -> None:
    result = quick_result("agreement")
    drafters = {COPYING, *zoo.names(zoo.Family.TOY)[1:]}
    for row in result["rows"]:
        assert row["right"].keys() == drafters
        assert all(0 <= right <= row["tokens"] for right in row["right"].values())
    assert {row["temperature"] for row in result["rows"]} == {0.0, 0.8}
    assert {entry["drafter"] for entry in result["findings"]["drafters"]} == drafters
