"""Ids of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.gateway.envelope import REQUEST_ID, request_id


@pytest.mark.parametrize("given_id", ["a", "req-1:2.3_4", "x" * 128])
def test_a_sane_id_is_kept(given_id: str) -> None:
    assert request_id(given_id) == given_id


@given(st.text().filter(lambda text: not REQUEST_ID.fullmatch(text)))
def test_any_other_is_replaced(given_id: str) -> None:
    made = request_id(given_id)
    assert REQUEST_ID.fullmatch(made)
    assert made != request_id(given_id)
