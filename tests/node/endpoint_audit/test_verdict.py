"""What answers say about the model behind an endpoint: of models whose scores stand at known distances."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from cosine_node.endpoint_audit.reading import TOP, Numbers, Reading
from cosine_node.endpoint_audit.verdict import EndpointVerdict, HeldForm, Judgement, conclude, judge

ANSWERS: Final = 40
LENGTH: Final = 20
STARTS: Final = np.arange(ANSWERS) * LENGTH
EXACT: Final = np.random.default_rng(1).normal(scale=1.5, size=(ANSWERS * LENGTH, 64))
"""The scores of 64 tokens at each place under the weights."""


def moved(distance: float, seed: int) -> Numbers:
    """Scores whose differences move by about this scale."""
    return EXACT + np.random.default_rng(seed).gumbel(scale=distance, size=EXACT.shape)


FORMS: Final = {"float32": EXACT, "float32/float16": moved(5e-4, 2), "float32/int4": moved(0.15, 3)}


def log_softmax(scores: Numbers) -> Numbers:
    return np.asarray(scores - np.log(np.exp(scores).sum(1, keepdims=True)))


def reading(scores: Numbers, answer: Sequence[int]) -> Reading:
    order = np.argsort(-scores, axis=1)[:, :TOP]
    places = np.arange(len(scores))
    gaps = scores[places, order[:, 0]][:, None] - scores[places[:, None], order]
    logprobs = log_softmax(scores)[places, answer]
    whole = Reading(np.zeros(0), logprobs, np.full(len(places), np.nan), order, gaps, 0.0, 1.0)
    return replace(whole, margins=whole.margins_of(np.array(answer)))


def judged(endpoint: Numbers, *, claimed: str = "float32", tells: bool = False) -> Judgement:
    answer = endpoint.argmax(1)
    names = [claimed, *(name for name in FORMS if name != claimed)]
    told = log_softmax(endpoint)[np.arange(len(answer)), answer] if tells else None
    judgement, rates = judge(
        [HeldForm(name, reading(FORMS[name], answer), STARTS) for name in names], told, draws=1
    )
    assert all(sum(shares.values()) == pytest.approx(1.0) for shares in rates.values())
    assert rates["another model, 2 nats away"][EndpointVerdict.THIS] == 0.0
    return judgement


def test_text_tells_the_model_its_quantised_self_and_another() -> None:
    assert judged(EXACT).verdict is EndpointVerdict.THIS
    assert judged(FORMS["float32/int4"]).verdict is EndpointVerdict.QUANTISED
    assert judged(EXACT, claimed="float32/int4").verdict is EndpointVerdict.QUANTISED
    assert judged(FORMS["float32/int4"], claimed="float32/int4").verdict is EndpointVerdict.THIS
    assert judged(moved(2.0, 7)).verdict is EndpointVerdict.ANOTHER


def test_text_does_not_tell_float16_from_float32_and_says_so() -> None:
    for name in ("float32", "float32/float16"):
        assert {"float32", "float32/float16"} <= {*judged(FORMS[name]).fits}


def test_log_probabilities_tell_float16_from_float32() -> None:
    for name in FORMS:
        found = judged(FORMS[name], tells=True)
        assert found.fits[0] == name
        assert found.verdict is (EndpointVerdict.QUANTISED if "int4" in name else EndpointVerdict.THIS)


def test_between_quantised_and_another_it_is_undecided() -> None:
    assert judged(moved(0.25, 7)).verdict is EndpointVerdict.UNDECIDED


def test_sampled_texts_that_surprise_accuse_whatever_greedy_ones_say() -> None:
    of_text = judged(EXACT)
    assert [conclude(of_text, None, surprise) for surprise in (3.0, 9.0)] == [
        EndpointVerdict.THIS,
        EndpointVerdict.ANOTHER,
    ]
    strange = replace(of_text, verdict=EndpointVerdict.ANOTHER)
    assert conclude(of_text, strange, 0.0) is EndpointVerdict.UNDECIDED
    assert conclude(strange, of_text, 0.0) is EndpointVerdict.ANOTHER
