"""Ranges of layers: parsing and relations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.stage import LayerRange

LAYERS = 12


@st.composite
def ranges(draw: st.DrawFn) -> LayerRange:
    first = draw(st.integers(0, LAYERS - 1))
    return LayerRange(first=first, end=draw(st.integers(first + 1, LAYERS)), layers=LAYERS)


@given(ranges(), ranges())
def test_overlap_and_order_are_those_of_sets(one: LayerRange, other: LayerRange) -> None:
    held, others = (set(range(each.first, each.end)) for each in (one, other))
    assert {layer for layer in range(-1, LAYERS + 1) if layer in one} == held
    assert len(one) == len(held)
    assert one.overlaps(other) == other.overlaps(one) == bool(held & others)
    assert one.precedes(other) == (max(held) + 1 == min(others))
    assert (one.is_first, one.is_last) == (0 in held, LAYERS - 1 in held)


@pytest.mark.parametrize("text", ["", "8:", "8:8", "9:8", "0:13", "-1:4", "a:b", "٣:٤"])
def test_a_user_who_writes_anything_else_is_told_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match=r"no layers of a model of 12.*for example 0:12"):
        LayerRange.parse(text, layers=LAYERS)


@given(st.integers(), st.integers(), st.integers())
def test_none_is_empty_or_outside_of_its_model(first: int, end: int, layers: int) -> None:
    if 0 <= first < end <= layers:
        assert LayerRange(first=first, end=end, layers=layers).layers == layers
    else:
        with pytest.raises(MalformedMessage, match="are no layers"):
            LayerRange(first=first, end=end, layers=layers)
