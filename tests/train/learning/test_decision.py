"""The time to learn, the decisions on weights, and the state that is kept between runs."""

import json
import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from cosine_train.learning.decision import (
    NAME,
    Acceptance,
    LearningState,
    goes_live,
    is_suspect,
    keeps_expertise,
    standard_error,
)

NONE = Acceptance()


def test_weights_go_live_where_they_are_better_by_more_than_the_error_of_independent_draws() -> None:
    half = Acceptance(50, 100)
    assert standard_error(half, half) == pytest.approx(math.sqrt(0.25 * 2 / 100))
    for right, is_live in ((530, True), (520, False), (470, False)):
        assert goes_live(before=Acceptance(500, 1000), after=Acceptance(right, 1000)) is is_live
    assert not goes_live(before=NONE, after=NONE) and not goes_live(before=half, after=NONE)


def test_a_real_fall_is_suspect_and_chance_hardly_ever() -> None:
    assert is_suspect(before=Acceptance(1200, 2000), since=Acceptance(250, 500))
    assert not is_suspect(before=Acceptance(1200, 2000), since=Acceptance(24, 499))
    rng = Random(5)
    draws = [Acceptance(sum(rng.random() < 0.6 for _ in range(600)), 600) for _ in range(1001)]
    assert sum(is_suspect(before=one, since=other) for one, other in pairwise(draws)) <= 6


@pytest.mark.parametrize(
    ("announced", "after", "keeps"),
    [
        (["code"], {"code": 3.2, "math": 9.0}, True),
        (["code"], {"code": 3.4, "math": 1.0}, False),
        (["code", "math"], {"code": 2.0, "math": 5.0}, False),
        (["law"], {"code": 9.0}, True),
        (["code"], {}, False),
    ],
)
def test_weights_that_forgot_an_announced_domain_are_told(
    announced: list[str], after: dict[str, float], keeps: bool
) -> None:
    assert keeps_expertise(announced, before={"code": 3.0, "math": 4.0}, after=after, factor=1.1) is keeps


def test_its_state_comes_back_as_it_was_and_what_is_damaged_of_it_as_at_first(tmp_path: Path) -> None:
    state = LearningState(rounds=3, seen=17, earlier_expertise=("math",), before=Acceptance(5, 10))
    state.write(tmp_path)
    assert LearningState.read(tmp_path) == state
    wrong = {"rounds": -1, "seen": "7", "before": {"right": 9, "tokens": 3}, "write": 5, "unknown": 1}
    for text in ("", "[]", json.dumps(wrong)):
        (tmp_path / NAME).write_text(text)
        assert LearningState.read(tmp_path) == LearningState()
