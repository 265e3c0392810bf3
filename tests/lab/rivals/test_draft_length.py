"""The best length of a synchronous chain."""

import random

import pytest

from cosine_lab.rivals.draft_length import DRAFT_LENGTHS, best_draft_tokens, expected_tokens


def best(acceptance: float, round_trips_s: float) -> int:
    return best_draft_tokens(acceptance=acceptance, draft_token_s=0.006, round_trips_s=round_trips_s, verify_s=0.06)


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_the_expectation_is_the_sum_of_its_steps(acceptance: float, tokens: int) -> None:
    total = sum(acceptance**step for step in range(tokens + 1))
    assert expected_tokens(acceptance=acceptance, draft_tokens=tokens) == pytest.approx(total)


def test_far_links_ask_for_longer_drafts_and_bad_drafters_for_shorter() -> None:
    by_rtt = [best(0.8, rtt_s) for rtt_s in (0.0, 0.02, 0.1, 0.3)]
    assert by_rtt == sorted(by_rtt)
    assert by_rtt[0] < by_rtt[-1]
    by_acceptance = [best(acceptance, 0.05) for acceptance in (0.1, 0.4, 0.7, 0.95)]
    assert by_acceptance == sorted(by_acceptance)
    assert by_acceptance[0] < by_acceptance[-1]


@pytest.mark.parametrize("seed", range(50))
def test_it_is_the_best_of_all_lengths(seed: int) -> None:
    rng = random.Random(seed)
    acceptance, draft_s, rtt_s, pass_s = rng.random(), rng.uniform(0.001, 0.05), rng.uniform(0, 0.3), 0.06
    chosen = best_draft_tokens(acceptance=acceptance, draft_token_s=draft_s, round_trips_s=rtt_s, verify_s=pass_s)
    rates = {
        g: sum(acceptance**step for step in range(g + 1)) / (g * draft_s + rtt_s + pass_s) for g in DRAFT_LENGTHS
    }
    assert rates[chosen] == pytest.approx(max(rates.values())), f"seed {seed}"
