"""An honest verifier is not convicted, one that writes something else is, and rounding explains near ties only."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.audit_rule import (
    FALSE_ALARM,
    LLAMA_NEAR_TIES,
    NEAR_TIES,
    WIDE,
    AuditState,
    accuses,
    flip_rate_of,
    is_near_tie,
    most_by_chance,
    near_tie_of,
    state_of,
)
from cosine_protocol.limits import MAX_AUDIT_FINDINGS, MAX_NEW_TOKENS, MAX_SCORE_GAP
from cosine_protocol.messages import AuditFinding, AuditVerdict
from cosine_protocol.request import Sampling
from tests.protocol.samples import request_of

PLAIN = Sampling()
FILTERED = Sampling(temperature=0.8, top_p=0.9)

MOST_FLIPS = flip_rate_of("gguf:Q4_0+llama.cpp") * MAX_NEW_TOKENS
"""Near ties to be expected in the longest text: too many for the chance of none to be above 0 in a float."""


def is_accused(
    *gaps: float, positions: int = 200, more: int = 0, numerics: str = "float32", sampling: Sampling = PLAIN
) -> bool:
    """A verdict with findings of these gaps, and so many more near ties."""
    near = near_tie_of(numerics)
    findings = [AuditFinding(place, 1, gap) for place, gap in enumerate(gaps)]
    verdict = AuditVerdict(
        author="author",
        first=0,
        tokens=positions,
        digest=bytes(16),
        equal=positions - len(gaps) - more,
        near_ties=more + sum(gap < near for gap in gaps),
        different=sum(gap >= near for gap in gaps),
        findings=tuple(findings[:MAX_AUDIT_FINDINGS]),
    )
    return accuses(verdict, request_of(numerics=numerics, sampling=sampling))


@pytest.mark.parametrize("numerics", ["float32", "bfloat16", "float16", "gguf:Q4_1+llama.cpp"])
def test_one_wide_difference_accuses_and_a_narrow_one_does_not(numerics: str) -> None:
    near = near_tie_of(numerics)
    assert not is_accused(numerics=numerics)
    assert not is_accused(1.5 * near, numerics=numerics)
    assert is_accused(1.01 * WIDE * near, numerics=numerics)
    assert is_accused(MAX_SCORE_GAP, numerics=numerics)


def test_a_low_temperature_spreads_scores_and_so_what_is_wide() -> None:
    cold = Sampling(temperature=0.1)
    assert not is_accused(5 * near_tie_of("float32"), sampling=cold)
    assert is_accused(1.01 * WIDE * near_tie_of("float32") / 0.1, sampling=cold)


def test_near_ties_accuse_where_there_are_more_than_come_by_chance() -> None:
    expected = round(1000 * flip_rate_of("bfloat16"))
    assert not is_accused(positions=1000, more=expected, numerics="bfloat16")
    assert is_accused(positions=1000, more=4 * expected, numerics="bfloat16")
    # Whoever chooses the second best at every near tie of float32 rounds otherwise than float32 does.
    assert is_accused(positions=1000, more=10)


def test_with_filters_a_few_wide_differences_are_explained() -> None:
    assert not is_accused(MAX_SCORE_GAP, MAX_SCORE_GAP, sampling=FILTERED, numerics="bfloat16")
    assert is_accused(*[MAX_SCORE_GAP] * 20, sampling=FILTERED, numerics="bfloat16")
    # float32 rounds so much finer that one may be an accident, and two are none.
    assert not is_accused(MAX_SCORE_GAP, sampling=FILTERED)
    assert is_accused(MAX_SCORE_GAP, MAX_SCORE_GAP, sampling=FILTERED)
    assert is_accused(MAX_SCORE_GAP, sampling=Sampling(temperature=0.0, top_p=0.9))


@given(st.one_of(st.floats(1e-9, 50.0), st.floats(50.0, MOST_FLIPS)))
def test_more_than_the_most_by_chance_come_with_the_stated_chance(mean: float) -> None:
    def tail(count: int) -> float:
        terms = (math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1, count + 900))
        return math.fsum(terms)

    most = most_by_chance(mean)
    assert tail(most) <= 1.001 * FALSE_ALARM
    assert most == 0 or tail(most - 1) > 0.999 * FALSE_ALARM


@pytest.mark.parametrize(
    ("accusations", "state"),
    [
        ([], AuditState.UNANSWERED),
        ([False], AuditState.PASSED),
        ([True], AuditState.SUSPECTED),
        ([True, False], AuditState.DISPUTED),
        ([True, True], AuditState.CONVICTED),
        ([True, True, False], AuditState.CONVICTED),
        ([True, True, False, False], AuditState.DISPUTED),
        ([False, False], AuditState.PASSED),
    ],
)
def test_a_conviction_takes_two(accusations: list[bool], state: Any) -> None:
    assert state_of(accusations) is state


@pytest.mark.parametrize(
    ("numerics", "dtype"),
    [
        ("float32", "float32"),
        ("bfloat16/int8", "bfloat16"),
        ("float16", "float16"),
        ("scripted", "float32"),
        ("gguf:Q4_1+bfloat16/int8", "bfloat16"),
    ],
)
def test_quantised_weights_are_computed_with_in_their_data_type(numerics: str, dtype: str) -> None:
    assert near_tie_of(numerics) == NEAR_TIES[dtype]


@pytest.mark.parametrize(
    ("weights", "near_tie"), [("F32", LLAMA_NEAR_TIES["F32"]), ("F16", 0.02), ("Q8_0", 0.3), ("Q4_K", 1.0)]
)
def test_llama_rounds_activations_too_where_weights_have_few_bits(weights: str, near_tie: float) -> None:
    assert near_tie_of(f"gguf:{weights}+llama.cpp") == near_tie
    # Dequantised weights are computed with in the data type.
    assert near_tie_of(f"gguf:{weights}+float32") == NEAR_TIES["float32"]


@pytest.mark.parametrize(("temperature", "largest"), [(0.0, 0.1), (0.5, 0.2), (1.0, 0.1), (2.0, 0.1)])
def test_a_low_temperature_spreads_scores_and_their_errors(temperature: float, largest: float) -> None:
    sampling = Sampling(temperature=temperature)
    assert is_near_tie(largest * 0.99, sampling=sampling, near_tie=0.1)
    assert not is_near_tie(largest, sampling=sampling, near_tie=0.1)
