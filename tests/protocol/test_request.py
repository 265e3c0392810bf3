"""Sampling parameters: what means something is accepted, the rest is explained in a sentence."""

import math
from typing import Any

import pytest
from hypothesis import given

from cosine_protocol import limits
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.request import MAX_SEED, Request, Sampling
from tests.protocol.samples import request_of
from tests.protocol.strategies import of_class

HUGE = 10**400


def test_the_defaults_are_greedy_and_filter_nothing() -> None:
    sampling = Sampling()
    assert sampling.is_greedy
    assert (sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (0, 1.0, 0.0, 1.0)
    assert not Sampling(temperature=0.1).is_greedy


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (-0.1, limits.MAX_TEMPERATURE * 2, HUGE)),
        ("top_k", (-1, 2.5, limits.MAX_TOKEN_ID + 1)),
        ("top_p", (0.0, -1.0, 1.1)),
        ("min_p", (-0.1, 1.1)),
        ("repetition_penalty", (0.0, -1.0, limits.MAX_REPETITION_PENALTY * 2)),
        ("seed", (-1, 1.5, MAX_SEED + 1, HUGE)),
    ],
)
def test_a_value_that_means_nothing_is_refused_in_one_sentence(name: str, values: tuple[Any, ...]) -> None:
    for value in (*values, math.nan, math.inf, -math.inf):
        with pytest.raises(UsageError, match=rf"^{name} must .*\.$") as caught:
            Sampling(**{name: value})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (0, limits.MAX_TEMPERATURE)),
        ("top_k", (0, limits.MAX_TOKEN_ID)),
        ("top_p", (limits.MIN_TOP_P, 1)),
        ("min_p", (0, 1)),
        ("repetition_penalty", (limits.MIN_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY)),
        ("seed", (0, MAX_SEED)),
    ],
)
def test_what_sampling_accepts_fits_the_wire_and_the_digest(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        request = request_of(sampling=Sampling(**{name: value}))
        assert decode_body(Request, encode_body(request)) == request
        assert len(request_digest(request)) == limits.DIGEST_BYTES


@given(request=of_class(Request))
def test_what_the_wire_accepts_is_a_request(request: Request) -> None:
    assert decode_body(Request, encode_body(request)) == request


def test_the_prompt_is_not_shown_by_a_request() -> None:
    assert "15043" not in repr(request_of())
