"""The shown request, the filters and orders of the lists, and the warning on quitting."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cosine_tui.state.snapshot import RequestState, RequestView, Snapshot
from cosine_tui.state.view import ALL, Listing, Order, View
from tests.tui.snapshots import CODE, MATH, SNAPSHOT, SPARE, VERIFIER, request_of


def showing(*requests: RequestView) -> Snapshot:
    return replace(SNAPSHOT, requests=requests)


def number_of(view: View, snapshot: Snapshot) -> int | None:
    request = view.shown_request(snapshot)
    return None if request is None else request.number


ONE, TWO, OTHERS = request_of(1), request_of(2), request_of(3, is_own=False)
IDLE = request_of(8, is_own=False, state=RequestState.ASKING, text=())


@pytest.mark.parametrize(
    ("requests", "shown"),
    [((), None), ((ONE, TWO, OTHERS), 2), ((SNAPSHOT.requests[0], OTHERS, IDLE), 3)],
    ids=["nothing", "the latest of the user's own", "without one whatever is written"],
)
def test_a_request_is_shown_by_itself(requests: Sequence[RequestView], shown: int | None) -> None:
    assert number_of(View(), showing(*requests)) == shown


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (ALL, [VERIFIER, SPARE, CODE, MATH]),
        (Listing("drafter"), [CODE, MATH]),
        (Listing("DRAFTER math"), [MATH]),
        (Listing("bfloat16 nobody"), []),
        (Listing(order=Order.SPEED), [CODE, MATH, VERIFIER, SPARE]),
        # Unknown values come last.
        (Listing(order=Order.RTT), [VERIFIER, CODE, MATH, SPARE]),
        (Listing(order=Order.SHARE), [CODE, VERIFIER, SPARE, MATH]),
    ],
    ids=str,
)
def test_nodes_are_filtered_by_all_words_and_ordered(listing: Listing, expected: list[str]) -> None:
    assert [node.peer_id for node in listing.nodes(SNAPSHOT.nodes)] == expected


def test_requests_are_filtered_by_prompt_state_and_drafters_and_ordered() -> None:
    over = RequestState.FINISHED
    requests = (
        request_of(1, state=over, tokens=90, tokens_per_s=1.0, prompt="A poem"),
        replace(request_of(2, state=over, tokens=5, tokens_per_s=40.0), drafters=()),
        request_of(3, is_own=False),
        request_of(4, is_own=True, state=RequestState.ASKING),
    )

    def numbers(listing: Listing) -> list[int]:
        return [request.number for request in listing.requests(requests)]

    assert numbers(ALL) == numbers(Listing(order=Order.LOAD)) == [4, 3, 2, 1]
    assert numbers(Listing(order=Order.NEWEST)) == [4, 3, 2, 1]
    assert numbers(Listing(order=Order.TOKENS))[0] == 1 and numbers(Listing(order=Order.SPEED))[0] == 2
    assert numbers(Listing("poem")) == [1] and numbers(Listing("asking")) == [4]
    assert numbers(Listing("math")) == [4, 3, 1]
