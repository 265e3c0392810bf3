"""First choices along a target's answers, counted by kind; the toy family is measured whole."""

import numpy as np
import pytest

from cosine_lab.experiments.agreement import COPYING, STEPS, Steps, findings_of, right_drafts, rows_of
from cosine_lab.experiments.kinds import EXPERTS, questions_of
from cosine_node import zoo
from cosine_node.engine.base import Choice
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


def answer(kind: str, tokens: tuple[int, ...], prompt: tuple[int, ...] = (1, 2)) -> Answer:
    return Answer(
        question=1,
        domain=kind,
        sampling=Sampling(),
        prompt=prompt,
        tokens=tokens,
        likely_ids=np.zeros((len(tokens), 0), np.int32),
        likely_logs=np.zeros((len(tokens), 0), np.float16),
    )


def chosen(*tokens: int) -> list[Choice]:
    """A drafter's first choices, of which it is sure."""
    return [Choice(token, 1.0, ((token, 1.0),)) for token in tokens]


def test_no_question_is_learned_from() -> None:
    assert all(one.is_held_out for one in questions_of(zoo.Family.SMOL) if one.domain != EXPERTS)


def test_a_head_is_counted_by_its_first_token_and_by_each_further_on_where_all_before_were_right() -> None:
    steps: dict[str, Steps] = {"a": [(2, 3), (1, 1)], "b": [(1, 2), (0, 0)]}
    answers = [answer("chat", (3, 4, 5)), answer("chat", (6, 7)), answer("coding", (8, 9))]
    of_each = dict(zip(answers, (steps["a"], steps["b"], steps["b"]), strict=True))
    rows = rows_of(
        answers,
        {COPYING: lambda one: chosen(*one.tokens[:1], *[0] * (len(one.tokens) - 1))},
        {"head": lambda one: (of_each[one], chosen(*one.tokens))},
        say=silent,
    )
    assert [row["right"] for row in rows] == [{COPYING: 1, "head": len(one.tokens)} for one in answers]
    assert findings_of(rows, seed=0)["steps"][1:] == [
        {"temperature": 0.0, "drafter": "head", "token 1": 4 / 7, "token 2": 1.0},
    ]


def test_the_drafts_of_a_head_are_those_of_its_training() -> None:
    target = TorchEngine(tiny_llama(), pool_tokens=256, feature_layers=FEATURE_LAYERS)
    engine = HeadEngine(random_head(), target.embedding, pool_tokens=1024)
    home = HomeModel(engine=engine, curve=CostCurve(((1, 1.0),)), target=target)
    prompt, tokens = tuple(range(3, 15)), tuple(7 * place % 31 for place in range(24))
    # An answer of the head's own first choices but for every fifth token: each turn gets one more of them right.
    for _ in tokens:
        _, choices = right_drafts(home, answer("chat", tokens, prompt))
        tokens = tuple(7 if place % 5 == 4 else choice.token for place, choice in enumerate(choices))
    written = answer("chat", tokens, prompt)
    found, choices = right_drafts(home, written)
    assert len(choices) == len(tokens) == found[0][1]
    assert found[0][0] >= 20
    view = TargetView(tiny_llama(), FEATURE_LAYERS)
    assert found == right_steps(random_head(), view, prompt, tokens, STEPS)
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
