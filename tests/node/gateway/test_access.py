"""Keys open the gateway, whole and with their scheme."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.gateway.access import KeyRing

RING = KeyRing(["one", "two"])


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "BEARER  two "])
def test_keys_that_fit(header: str) -> None:
    assert RING.accepts(header)


@pytest.mark.parametrize("header", ["", "one", "Basic one", "Bearer", "Bearer ", "Bearer three", "Bearer one two"])
def test_keys_that_do_not(header: str) -> None:
    assert not RING.accepts(header)


@given(st.text())
def test_without_keys_everybody_may_come(header: str) -> None:
    assert KeyRing([]).accepts(header)


@given(st.text(st.characters(max_codepoint=255)))
def test_any_header_can_be_judged(header: str) -> None:
    assert not RING.accepts(header)
