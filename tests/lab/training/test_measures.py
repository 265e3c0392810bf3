"""Speculative-decoding figures on cases small enough to count by hand."""

import pytest
import torch

from cosine_lab.training.measures import Scored, expected_tokens, fusion_hits, hit_rate, tokens_per_verification


def test_hit_rate_weighs_by_tokens() -> None:
    assert hit_rate([[True], [False, False, True]]) == 0.5


@pytest.mark.parametrize(
    ("hits", "chain", "tokens"),
    [
        ([True] * 10, 4, 5.0),
        ([False] * 6, 4, 1.0),
        ([True, False, True, True, False], 4, 2.5),
        ([True, True, True, True], 1, 2.0),
    ],
)
def test_tokens_per_verification(hits: list[bool], chain: int, tokens: float) -> None:
    assert tokens_per_verification([hits], chain) == tokens


def test_expected_tokens_multiplies_acceptances() -> None:
    assert expected_tokens([[1.0, 1.0]], 2) == pytest.approx((3 + 2) / 2)
    assert expected_tokens([[0.5, 0.0]], 4) == pytest.approx((1.5 + 1.0) / 2)


def test_fusion_bounds_contain_the_expert() -> None:
    scored = Scored(
        written=torch.tensor([0, 1, 2]),
        guesses={
            "code": torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]]),
            "math": torch.tensor([[0.1, 0.9, 0.0], [0.1, 0.9, 0.0], [0.3, 0.4, 0.3]]),
        },
    )
    hits = fusion_hits_of_two(scored)
    assert hits["any_spec"] == [True, True, False]
    assert hits["maxconf_spec"] == [False, True, False]
    assert hits["vote_spec"] == [False, True, False]
    assert hits["tree2_expert"] == [True, True, False]


def fusion_hits_of_two(scored: Scored) -> dict[str, list[bool]]:
    padded = {name: torch.nn.functional.pad(guess, (0, 3)) for name, guess in scored.guesses.items()}
    return fusion_hits(Scored(scored.written, padded), "code", ["code", "math"])
