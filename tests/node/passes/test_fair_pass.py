"""Fair passes: shares of clients, and the bounded cost of a crowd."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve
from cosine_node.passes.fair_pass import CROWD, MAX_JOINED, MAX_OWED, CrowdDebt, Shares
from cosine_p2p.fair_places import User

CURVE = CostCurve(((1, 0.005), (64, 0.020)))
LINEAR = CostCurve(((1, 0.01), (64, 0.64)))
FLAT = CostCurve(((1, 0.06), (64, 0.06)))


def test_users_of_one_client_have_shares_of_what_is_the_clients() -> None:
    modest, greedy, other = User("gateway", b"modest"), User("gateway", b"greedy"), User("other")

    def taken(*present: User) -> Counter[User]:
        shares = Shares(present)
        return Counter(user for user in present if shares.take(user))

    assert taken(modest, *[greedy] * 12) == taken(*[greedy] * 12, modest) == {modest: 1, greedy: 1}
    assert taken(*[modest] * 2, *[greedy] * 12, *[other] * 16) == {modest: 2, greedy: 2, other: 4}
    # Names bring a client no more than another has.
    names = [User("gateway", bytes([number])) for number in range(12)]
    assert taken(other, *names) == {other: 1, names[0]: 1}


@given(
    st.sampled_from([CURVE, LINEAR, FLAT]),
    st.integers(1, 8),
    st.integers(1, 60),
    st.floats(0.5, 5.0),
    st.floats(1.0, 6.0),
    st.integers(0, 10**6),
)
def test_a_crowd_makes_passes_last_so_much_longer_and_no_more(
    curve: CostCurve, own: int, crowd: int, slowness: float, dearness: float, seed: int
) -> None:
    random = Random(seed)
    debt = CrowdDebt(curve)

    def seconds(tokens: int, crowd_tokens: int) -> float:
        joining_s = curve.seconds(tokens + crowd_tokens) - curve.seconds(tokens)
        return slowness * random.uniform(0.95, 1.05) * (curve.seconds(tokens) + dearness * joining_s)

    for _ in range(40):
        debt.note_pass(tokens=own, crowd_tokens=0, users=1, elapsed_s=seconds(own, 0))
    elapsed_s, joined, passes = 0.0, 0, 400
    for _ in range(passes):
        crowd_tokens = crowd if debt.may_join else 0
        joined += crowd_tokens > 0
        last_s = seconds(own, crowd_tokens)
        debt.note_pass(tokens=own + crowd_tokens, crowd_tokens=crowd_tokens, users=1, elapsed_s=last_s)
        elapsed_s += last_s
    alone_s = slowness * curve.seconds(own)
    longest_s = slowness * dearness * curve.seconds(own + crowd)
    if longest_s <= MAX_OWED * CROWD * alone_s / 1.5:
        assert elapsed_s <= 1.1 * CROWD * passes * alone_s + longest_s
    assert joined >= passes // (2 * MAX_OWED * CROWD / (CROWD - 1))
    if longest_s <= CROWD * alone_s / 1.1:
        assert joined >= passes * MAX_JOINED / (MAX_JOINED + 1) - 1


@pytest.mark.parametrize("clients", [2, 5])
def test_where_the_shares_of_others_take_as_long_a_crowd_stays_out(clients: int) -> None:
    debt = CrowdDebt(LINEAR)
    joined = 0
    for _ in range(1000):
        crowd_tokens = 2 if debt.may_join else 0
        joined += crowd_tokens > 0
        tokens = clients + crowd_tokens
        debt.note_pass(tokens=tokens, crowd_tokens=crowd_tokens, users=clients, elapsed_s=LINEAR.seconds(tokens))
    assert joined == 1
