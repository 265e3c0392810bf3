"""Filters and orders of the lists."""

from dataclasses import replace

import pytest

from cosine_tui.listing import ALL, Listing, Order
from cosine_tui.snapshot import NodeView, RequestState
from tests.tui.snapshots import CODE, MATH, SNAPSHOT, SPARE, VERIFIER, request_of


def names(nodes: list[NodeView]) -> list[str]:
    return [node.peer_id for node in nodes]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [VERIFIER, SPARE, CODE, MATH]),
        ("drafter", [CODE, MATH]),
        ("DRAFTER math", [MATH]),
        ("lost", [SPARE]),
        (CODE[-6:], [CODE]),
        ("bfloat16 nobody", []),
    ],
)
def test_a_filter_keeps_nodes_with_all_its_words(words: str, expected: list[str]) -> None:
    assert names(Listing(words).nodes(SNAPSHOT.nodes)) == expected


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (Order.USUAL, VERIFIER),
        (Order.SPEED, CODE),
        (Order.LOAD, MATH),
        (Order.RTT, VERIFIER),
        (Order.SHARE, CODE),
        (Order.TOKENS, VERIFIER),
    ],
)
def test_orders_of_nodes(order: Order, first: str) -> None:
    assert names(Listing(order=order).nodes(SNAPSHOT.nodes))[0] == first


def test_a_node_of_unknown_distance_comes_last() -> None:
    assert names(Listing(order=Order.RTT).nodes(SNAPSHOT.nodes))[-1] == SPARE


def test_orders_of_requests() -> None:
    over = RequestState.FINISHED
    requests = (
        request_of(1, state=over, tokens=90, tokens_per_s=1.0),
        request_of(2, state=over, tokens=5, tokens_per_s=40.0),
        request_of(3, is_own=False),
        request_of(4, is_own=True),
    )
    found = {order: [r.number for r in Listing(order=order).requests(requests)] for order in Order}
    assert found[Order.USUAL] == found[Order.LOAD] == [4, 3, 2, 1]
    assert found[Order.NEWEST] == [4, 3, 2, 1]
    assert found[Order.TOKENS][0] == 1 and found[Order.SPEED][0] == 2


def test_a_filter_finds_requests_by_prompt_state_and_drafters() -> None:
    requests = (request_of(1, prompt="A poem"), replace(request_of(2, state=RequestState.FAILED), drafters=()))
    assert [request.number for request in Listing("poem").requests(requests)] == [1]
    assert [request.number for request in Listing("failed").requests(requests)] == [2]
    assert [request.number for request in Listing("math").requests(requests)] == [1]


def test_what_is_not_as_usual_is_summed_up() -> None:
    assert ALL.summary() == ""
    assert Listing("code", Order.LOAD).summary() == "only 'code', by load"


def test_the_orders_go_round() -> None:
    order, seen = Order.USUAL, []
    for _ in Order:
        seen.append(order)
        order = order.next
    assert seen == list(Order) and order is Order.USUAL
