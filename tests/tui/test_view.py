"""What is shown: the request, the filters and orders of the lists; and when quitting asks first."""

from dataclasses import replace

import pytest

from cosine_tui.snapshot import NodeView, RequestState, Snapshot
from cosine_tui.view import ALL, Listing, Order, View
from tests.tui.snapshots import CODE, MATH, SNAPSHOT, SPARE, VERIFIER, request_of


def showing(*requests: object) -> Snapshot:
    return replace(SNAPSHOT, requests=requests)  # type: ignore[arg-type]


def number_of(view: View, snapshot: Snapshot) -> int | None:
    request = view.shown_request(snapshot)
    return None if request is None else request.number


def test_the_latest_of_the_users_own_is_shown_before_any_other() -> None:
    snapshot = showing(request_of(1), request_of(2), request_of(3, is_own=False))
    assert number_of(View(), snapshot) == 2
    assert number_of(View(), showing()) is None


def test_without_an_own_request_the_one_that_writes_is_shown() -> None:
    idle = request_of(8, is_own=False, state=RequestState.ASKING, text=())
    snapshot = showing(SNAPSHOT.requests[0], request_of(7, is_own=False), idle)
    assert number_of(View(), snapshot) == 7


def test_a_chosen_request_stays_until_it_is_forgotten() -> None:
    view, snapshot = View(), showing(request_of(1), request_of(2))
    view.pin_request(1)
    assert number_of(view, snapshot) == 1
    assert number_of(view, showing(request_of(2), request_of(3))) == 3


def test_steps_end_at_the_first_and_the_last() -> None:
    view, snapshot = View(), showing(request_of(1), request_of(2))
    view.step_request(snapshot, 1)
    assert number_of(view, snapshot) == 2
    for _ in range(3):
        view.step_request(snapshot, -1)
    assert number_of(view, snapshot) == 1
    view.step_request(showing(), 1)


def test_the_latest_is_whatever_is_written() -> None:
    view, snapshot = View(), showing(request_of(1, is_own=False), request_of(2))
    view.follow_latest()
    assert number_of(view, snapshot) == 1
    view.follow_own(snapshot)
    assert number_of(view, snapshot) == 2


def test_nothing_is_asked_where_nothing_of_the_users_own_goes_on() -> None:
    over = request_of(1, state=RequestState.FINISHED)
    assert View().may_quit(showing(over, request_of(2, is_own=False)))


def test_quitting_is_asked_about_once_and_anew_for_what_began_since() -> None:
    view, one = View(), showing(request_of(1))
    assert [view.may_quit(one), view.may_quit(one)] == [False, True]
    assert not view.may_quit(showing(request_of(1), request_of(2)))
    view.forget_warning()
    assert not view.may_quit(one)


def test_a_prompt_just_sent_goes_on_before_any_snapshot_knows_it() -> None:
    view, before = View(), showing(request_of(4, is_own=False))
    view.follow_own(before)
    assert view.own_running(before) == {5}
    own = request_of(6)
    assert view.own_running(showing(*before.requests, own)) == {6}
    assert view.own_running(showing(*before.requests, replace(own, state=RequestState.FINISHED))) == frozenset()


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
