"""First choices along a target's answers, counted by kind; the toy family is measured whole."""

from dataclasses import replace

import numpy as np
import pytest

from cosine_lab.experiments.agreement import (
    COPYING,
    STEPS,
    Steps,
    findings_of,
    ranked,
    right_drafts,
    rows_of,
    together,
)
from cosine_node import zoo
from cosine_node.engine.base import Choice, Row
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.eagle.head_engine import HeadEngine
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.models.home_model import HomeModel
from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer
from cosine_train.training.head_steps import TargetView, right_steps
from tests.lab.experiments.quick import quick_result, silent
from tests.node.engine.eagle.small_head import FEATURE_LAYERS, random_head
from tests.node.engine.tiny_models import tiny_llama


def answer(
    kind: str, tokens: tuple[int, ...], temperature: float = 0.0, prompt: tuple[int, ...] = (1, 2)
) -> Answer:
    return Answer(
        question=1,
        domain=kind,
        sampling=Sampling(temperature=temperature),
        prompt=prompt,
        tokens=tokens,
        likely_ids=np.zeros((len(tokens), 0), np.int32),
        likely_logs=np.zeros((len(tokens), 0), np.float16),
    )


def chosen(*tokens: int) -> list[Choice]:
    """A drafter's first choices, of which it is sure."""
    return [Choice(token, 1.0, ((token, 1.0),)) for token in tokens]


def test_anything_that_guesses_is_counted_along_each_answer() -> None:
    answers = [answer("chat", (3, 4, 5)), answer("coding", (6,))]
    first, same = (
        (lambda one: chosen(*one.tokens[:1], *[0] * (len(one.tokens) - 1))),
        lambda one: chosen(*one.tokens),
    )
    rows = rows_of(answers, {"first": first, "all": same}, say=silent)
    assert [(found["kind"], found["tokens"], found["right"]) for found in rows] == [
        ("chat", 3, {"first": 1, "all": 3}),
        ("coding", 1, {"first": 1, "all": 1}),
    ]


def test_what_drafters_know_together_is_at_most_what_any_of_them_chose() -> None:
    sure = [Choice(token, 1.0, ((token, 0.9), (9, 0.1))) for token in (3, 4, 1, 1)]
    unsure = [Choice(token, 1.0, ((token, 0.4), (6, 0.3))) for token in (1, 1, 5, 2)]
    known = together([sure, unsure], (3, 4, 5, 6))
    # The mixture follows the drafter that is sure and was right, and is wrong with it at the third token.
    assert known == {"any": 3, "mixture": 2, "two": 3}
    assert [ranked(sure, 2), ranked(unsure, 1)] == [[[3, 9], [4, 9], [1, 9], [1, 9]], [[1], [1], [5], [2]]]


def test_a_head_is_counted_by_its_first_token_and_by_each_further_on_where_all_before_were_right() -> None:
    steps: dict[str, Steps] = {"a": [(2, 3), (1, 1)], "b": [(1, 2), (0, 0)]}
    answers = [answer("chat", (3, 4, 5)), answer("chat", (6, 7)), answer("coding", (8, 9))]
    of_each = dict(zip(answers, (steps["a"], steps["b"], steps["b"]), strict=True))
    rows = rows_of(
        answers,
        {COPYING: lambda one: chosen(*[0] * len(one.tokens))},
        {"head": lambda one: (of_each[one], chosen(*one.tokens))},
        say=silent,
    )
    assert [row["right"] for row in rows] == [{COPYING: 0, "head": len(one.tokens)} for one in answers]
    assert findings_of(rows, seed=0)["steps"][1:] == [
        {"temperature": 0.0, "drafter": "head", "token 1": 4 / 7, "token 2": 1.0},
    ]


PROMPT = tuple(range(3, 15))


def written_by_a_head(home: HomeModel, temperature: float) -> Answer:
    """An answer of a head's own first choices but for every fifth token."""
    head, target = home.engine, home.target
    assert target is not None
    text = list(PROMPT)
    for place in range(24):
        seen = target.open(sampling=Sampling(), prompt_tokens=len(PROMPT))
        row = Row.chain(seen, text[:-1])
        target.forward([row])
        target.keep(seen, row.nodes)
        sequence = head.open(sampling=Sampling(temperature=temperature), prompt_tokens=len(PROMPT) - 1)
        made = target.activations(seen, 0, len(text) - 1)
        (result,) = head.forward([replace(Row.chain(sequence, text[1:]), activations=made)])
        text.append(7 if place % 5 == 4 else result.choices[-1].token)
        target.release(seen)
        head.release(sequence)
    return answer("chat", tuple(text[len(PROMPT) :]), temperature, PROMPT)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_drafts_of_a_head_are_those_of_its_training(temperature: float) -> None:
    target = TorchEngine(tiny_llama(), pool_tokens=256, feature_layers=FEATURE_LAYERS)
    engine = HeadEngine(random_head(), target.embedding, pool_tokens=1024)
    home = HomeModel(engine=engine, curve=CostCurve(((1, 1.0),)), target=target)
    written = written_by_a_head(home, temperature)
    found, choices = right_drafts(home, written)
    assert len(choices) == len(written.tokens)
    first, asked = found[0]
    assert asked == 24 and first >= 20 and found[1] == (found[1][0], first - (written.tokens[-1] != 7))
    if temperature == 0.0:
        view = TargetView(tiny_llama(), FEATURE_LAYERS)
        assert found == right_steps(random_head(), view, PROMPT, written.tokens, STEPS)
    assert engine.open_sequences == target.open_sequences == 0


@pytest.mark.thorough
def test_every_drafter_of_a_family_is_measured() -> None:
    result = quick_result("agreement")
    drafters = {COPYING, *zoo.names(zoo.Family.TOY)[1:]}
    for row in result["rows"]:
        assert row["right"].keys() == drafters
        assert all(0 <= right <= row["tokens"] for right in row["right"].values())
    assert {row["temperature"] for row in result["rows"]} == {0.0, 0.8}
    assert {entry["drafter"] for entry in result["findings"]["drafters"]} == drafters
