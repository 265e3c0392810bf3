"""The speculation account: whatever drafts cost, a request loses at most a little against plain decoding."""

import random

import pytest

from cosine_node.verifier.request import FREE_PASSES, MAX_DEBT, SpeculationAccount

PLAIN_S = 0.05


class Ledger:
    """The same sums kept apart from the account, and what the worst pass so far lost."""

    def __init__(self) -> None:
        self.account = SpeculationAccount()
        self.spent_s = 0.0
        self.plain_s = 0.0
        self.worst_loss_s = 0.0

    def charge(self, *, spent_s: float, tokens: int) -> None:
        self.account.charge(spent_s=spent_s, tokens=tokens, plain_pass_s=PLAIN_S)
        self.spent_s += spent_s
        self.plain_s += tokens * PLAIN_S
        self.worst_loss_s = max(self.worst_loss_s, spent_s - tokens * PLAIN_S)

    @property
    def debt_s(self) -> float:
        return self.spent_s - self.plain_s

    @property
    def allowed_s(self) -> float:
        return max(MAX_DEBT * self.plain_s, FREE_PASSES * PLAIN_S)


@pytest.mark.parametrize("seed", range(40))
def test_no_walk_loses_more_than_the_allowance_and_one_pass(seed: int) -> None:
    rng = random.Random(seed)
    acceptance, dearness = rng.random(), rng.uniform(1.0, 1.75)
    ledger = Ledger()
    for _ in range(2000):
        if ledger.account.may_speculate:
            ledger.charge(spent_s=PLAIN_S * rng.uniform(1.0, dearness), tokens=1 + (rng.random() < acceptance))
        else:
            ledger.charge(spent_s=PLAIN_S, tokens=1)
        assert ledger.debt_s <= ledger.allowed_s + max(0.0, ledger.worst_loss_s) + 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_drafts_that_never_hit_cost_two_percent_of_a_long_request(seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger()
    for _ in range(5000):
        dearness = rng.uniform(1.0, 1.75) if ledger.account.may_speculate else 1.0
        ledger.charge(spent_s=PLAIN_S * dearness, tokens=1)
    assert ledger.debt_s <= MAX_DEBT * ledger.plain_s + FREE_PASSES * PLAIN_S


@pytest.mark.parametrize("lost_passes", [1, 3, 10])
def test_a_request_in_debt_recovers_by_plain_passes(lost_passes: int) -> None:
    ledger = Ledger()
    ledger.charge(spent_s=(1 + lost_passes) * PLAIN_S, tokens=1)
    assert not ledger.account.may_speculate
    passes = 0
    while not ledger.account.may_speculate:
        ledger.charge(spent_s=PLAIN_S, tokens=1)
        passes += 1
    assert passes == pytest.approx(lost_passes / MAX_DEBT, abs=2)


def test_one_good_pass_pays_a_debt_back() -> None:
    ledger = Ledger()
    ledger.charge(spent_s=2 * PLAIN_S, tokens=1)
    assert not ledger.account.may_speculate
    ledger.charge(spent_s=PLAIN_S, tokens=3)
    assert ledger.account.may_speculate


def test_a_new_request_may_speculate() -> None:
    assert SpeculationAccount().may_speculate


def test_three_quarters_of_a_pass_are_free() -> None:
    for spent, may in ((1.74, True), (1.76, False)):
        account = SpeculationAccount()
        account.charge(spent_s=spent * PLAIN_S, tokens=1, plain_pass_s=PLAIN_S)
        assert account.may_speculate is may
