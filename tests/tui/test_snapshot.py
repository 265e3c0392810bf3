"""Reading a snapshot: shares, names, the speed of all."""

from cosine_tui.snapshot import Standing
from tests.tui.snapshots import CODE, SNAPSHOT


def test_a_share_of_the_text_is_unknown_before_the_first_token() -> None:
    assert Standing().text_share is None
    assert Standing(accepted=3, text_tokens=12).text_share == 0.25


def test_nodes_and_requests_are_found_by_their_names() -> None:
    node, request = SNAPSHOT.node(CODE), SNAPSHOT.request(6)
    assert node is SNAPSHOT.nodes[2] and request is SNAPSHOT.requests[0]
    assert SNAPSHOT.node("nobody") is None and SNAPSHOT.request(99) is None


def test_the_speed_of_all_is_that_of_what_goes_on() -> None:
    assert [request.number for request in SNAPSHOT.running] == [7] and SNAPSHOT.tokens_per_s == 17.3
