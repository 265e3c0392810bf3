"""Ids of requests, and the keys that open the gateway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.gateway.middleware import REQUEST_ID, KeyRing, request_id

RING = KeyRing(["one", "two"])


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "BEARER  two "])
def test_keys_that_fit(header: str) -> None:
    assert RING.matched(header)


def test_keys_are_told_apart() -> None:
    assert len({RING.matched("Bearer one"), RING.matched("Bearer two")}) == 2


@pytest.mark.parametrize("header", ["", "one", "Basic one", "Bearer", "Bearer ", "Bearer three", "Bearer one two"])
def test_keys_that_do_not(header: str) -> None:
    assert RING.matched(header) is None


@given(st.text())
def test_without_keys_everybody_may_come(header: str) -> None:
    assert KeyRing([]).matched(header) == b""


@given(st.text(st.characters(max_codepoint=255)))
def test_any_header_can_be_judged(header: str) -> None:
    assert RING.matched(header) is None


@pytest.mark.parametrize("given_id", ["a", "req-1:2.3_4", "x" * 128])
def test_a_sane_id_is_kept(given_id: str) -> None:
    assert request_id(given_id) == given_id


@given(st.text().filter(lambda text: not REQUEST_ID.fullmatch(text)))
def test_any_other_is_replaced(given_id: str) -> None:
    made = request_id(given_id)
    assert REQUEST_ID.fullmatch(made)
    assert made != request_id(given_id)
