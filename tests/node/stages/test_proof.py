"""Projections estimate the distance of any two vectors, equally on both sides of the wire."""

import math
from typing import Final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.stages.proof import AT_ONCE_TOKENS, Projections, project, read_projections

SEED: Final = bytes(range(16))
TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def raw(vectors: torch.Tensor) -> bytes:
    return vectors.contiguous().view(torch.uint8).numpy().tobytes()


def told(vectors: torch.Tensor, numerics: str = "float32", seed: bytes = SEED) -> Projections:
    found = read_projections(
        project(raw(vectors), tokens=len(vectors), numerics=numerics, seed=seed), tokens=len(vectors)
    )
    assert found is not None
    return found


def test_the_signs_of_a_seed_are_those_of_the_document() -> None:
    # The projections of unit vectors are the signs, from SHAKE-256 of domain and seed.
    signs = told(torch.eye(3))
    assert ["".join("1" if sign > 0 else "0" for sign in of_number) for of_number in signs] == [
        "0110100101010100",
        "0011100101111001",
        "0011001110001000",
    ]


@pytest.mark.parametrize("numerics", TYPES)
def test_numbers_of_each_type_are_read_as_what_they_are(numerics: str) -> None:
    vectors = torch.randn(AT_ONCE_TOKENS + 3, 40, generator=torch.Generator().manual_seed(1)).to(TYPES[numerics])
    assert np.allclose(told(vectors, numerics), told(vectors.float()), rtol=1e-6, atol=1e-6)


@given(width=st.integers(1, 300), seed=st.binary(min_size=16, max_size=16), scale=st.floats(1e-3, 1e3))
def test_a_difference_shows_about_as_long_as_it_is(width: int, seed: bytes, scale: float) -> None:
    drawn = torch.Generator().manual_seed(width)
    vector, change = torch.randn(1, width, generator=drawn), scale * torch.randn(1, width, generator=drawn)
    difference = told(vector + change, seed=seed) - told(vector, seed=seed)
    length = math.sqrt(float(np.mean(difference**2)))
    assert 0.1 < length / float(torch.linalg.norm((vector + change) - vector)) < 3


def test_what_is_not_finite_or_too_large_is_told_as_such() -> None:
    assert not np.isfinite(told(torch.full((1, 64), 3e38))).all()
