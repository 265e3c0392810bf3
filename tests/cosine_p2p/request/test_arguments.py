"""Kinds of arguments: what they take, and the sentence that says what they do not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.request.arguments import (
    FLAG,
    SECONDS,
    STOP,
    TOKEN_IDS,
    ArgumentKind,
    read_argument,
    text,
    texts,
    whole,
)
from cosine_protocol.errors import UsageError

KINDS: dict[str, ArgumentKind[Any]] = {
    "flag": FLAG,
    "seconds": SECONDS,
    "stop": STOP,
    "token ids": TOKEN_IDS,
    "text": text("a name"),
    "texts": texts("names"),
    "whole": whole(1, 5),
}
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers()),
    lambda below: st.one_of(st.lists(below), st.dictionaries(st.text(), below), st.tuples(below)),
    max_leaves=5,
)


@given(st.sampled_from(sorted(KINDS)), VALUES)
def test_a_value_is_taken_or_refused_by_name(kind: str, value: Any) -> None:
    try:
        read_argument("it", value, KINDS[kind])
    except UsageError as refused:
        assert str(refused).startswith(f"it must be {KINDS[kind].meaning}, not ")
