"""When a drafter learns, which weights go live and which go back, and what it remembers of that."""

import json
import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.learning.decision import (
    ERRORS_DOWN,
    FIRST_PAUSE_S,
    HELD_OUT_TOKENS,
    LIVE_TOKENS,
    LONGEST_PAUSE_S,
    NAME,
    NEW_TOKENS,
    Acceptance,
    LearningState,
    goes_back,
    goes_live,
    is_due,
    is_suspect,
    keeps_expertise,
    pause_s,
    refreshed_expertise,
    standard_error,
)
from cosine_protocol.limits import MAX_EXPERTISE

NONE = Acceptance()


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    tokens = draw(st.integers(0, 5000))
    return Acceptance(draw(st.integers(0, tokens)), tokens)


def test_the_error_is_that_of_independent_draws() -> None:
    assert standard_error(Acceptance(50, 100), Acceptance(50, 100)) == pytest.approx(math.sqrt(0.25 * 2 / 100))
    assert standard_error(NONE, Acceptance(50, 100)) == math.inf


@pytest.mark.parametrize(
    ("new_tokens", "held_out_tokens", "due"),
    [
        (NEW_TOKENS, HELD_OUT_TOKENS, True),
        (NEW_TOKENS - 1, HELD_OUT_TOKENS, False),
        (NEW_TOKENS, HELD_OUT_TOKENS - 1, False),
    ],
)
def test_a_round_needs_texts_to_learn_from_and_to_measure_by(
    new_tokens: int, held_out_tokens: int, due: bool
) -> None:
    assert is_due(new_tokens=new_tokens, held_out_tokens=held_out_tokens) is due


@pytest.mark.parametrize(
    ("before", "after", "live"),
    [
        (Acceptance(500, 1000), Acceptance(530, 1000), True),
        (Acceptance(500, 1000), Acceptance(520, 1000), False),
        (Acceptance(500, 1000), Acceptance(470, 1000), False),
        (NONE, NONE, False),
    ],
)
def test_weights_go_live_where_they_are_better(before: Acceptance, after: Acceptance, live: bool) -> None:
    assert goes_live(before=before, after=after) is live


@given(acceptances(), acceptances())
def test_no_weights_go_live_that_are_not_better(before: Acceptance, after: Acceptance) -> None:
    if goes_live(before=before, after=after):
        assert after.share > before.share
        assert not goes_live(before=after, after=before)


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


@given(acceptances(), acceptances())
def test_only_a_fall_is_suspect(before: Acceptance, since: Acceptance) -> None:
    if is_suspect(before=before, since=since):
        assert since.share < before.share
        assert since.tokens >= LIVE_TOKENS
        assert before.share - since.share > ERRORS_DOWN * standard_error(before, since)


def test_chance_is_hardly_ever_suspect() -> None:
    rng = Random(5)
    draws = [Acceptance(sum(rng.random() < 0.6 for _ in range(600)), 600) for _ in range(1001)]
    suspects = sum(is_suspect(before=one, since=other) for one, other in pairwise(draws))
    assert suspects <= 6


def test_a_real_fall_is_suspect() -> None:
    assert is_suspect(before=Acceptance(1200, 2000), since=Acceptance(250, 500))
    assert not is_suspect(before=Acceptance(1200, 2000), since=Acceptance(24, 499))


@pytest.mark.parametrize(
    ("earlier", "live", "back"),
    [
        (Acceptance(60, 100), Acceptance(50, 100), True),
        (Acceptance(50, 100), Acceptance(60, 100), False),
        (Acceptance(50, 100), Acceptance(50, 100), False),
        (NONE, NONE, True),
    ],
)
def test_the_worse_of_two_goes_back(earlier: Acceptance, live: Acceptance, back: bool) -> None:
    assert goes_back(earlier=earlier, live=live) is back


def test_pauses_double_up_to_an_hour() -> None:
    pauses = [pause_s(deaths) for deaths in range(1, 100)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_domains_that_have_come_near_are_announced_too() -> None:
    nll = {"code": 3.0, "math": 3.3, "medical": 5.0, "dialogue": 2.0}
    assert refreshed_expertise(("code",), nll, factor=1.15) == ("code", "dialogue", "math")
    assert refreshed_expertise(("code", "medical"), nll, factor=1.15) == ("code", "medical", "dialogue", "math")
    assert refreshed_expertise(("law",), nll, factor=1.15) == ("law",), "nothing to compare with"
    assert refreshed_expertise((), nll, factor=1.15) == ()


@given(st.lists(st.sampled_from("abcdefghijklmnopqrs"), max_size=MAX_EXPERTISE, unique=True), st.floats(1, 3))
def test_announced_domains_stay_within_what_a_record_holds(announced: list[str], factor: float) -> None:
    nll = {name: 1.0 + number for number, name in enumerate("abcdefghijklmnopqrstu")}
    refreshed = refreshed_expertise(announced, nll, factor=factor)
    assert refreshed[: len(announced)] == tuple(announced)
    assert len(refreshed) <= MAX_EXPERTISE
    assert len(set(refreshed)) == len(refreshed)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    state = LearningState(rounds=3, seen=17, earlier_expertise=("math",), before=Acceptance(5, 10))
    state.write(tmp_path)
    assert LearningState.read(tmp_path) == state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps({"rounds": -1, "seen": "7", "before": {"right": 9, "tokens": 3}, "write": 5, "unknown": 1}),
    ],
)
def test_what_is_damaged_is_as_at_first(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert LearningState.read(tmp_path) == LearningState()
