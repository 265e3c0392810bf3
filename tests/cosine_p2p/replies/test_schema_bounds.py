"""Bounds of numbers in schemas: what llguidance allows by them is what jsonschema does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from cosine_p2p.replies.schema_bounds import with_sound_bounds

BYTES = LLTokenizer("byte")
NUMBERS = st.sampled_from([-4.5, -4, -3.5, -1, -0.5, 0, 0.5, 1, 2.5, 4, 10, 10.5])


def allows(schema: Any, text: str) -> bool:
    """True if a text is one that llguidance takes by a schema."""
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@given(NUMBERS, NUMBERS, st.booleans(), st.booleans(), NUMBERS)
def test_a_number_that_is_taken_is_one_that_the_schema_allows(
    low: float, high: float, is_above: bool, is_below: bool, number: float
) -> None:
    names = "exclusiveMinimum" if is_above else "minimum", "exclusiveMaximum" if is_below else "maximum"
    schema = {"type": "number", names[0]: min(low, high), names[1]: max(low, high)}
    if allows(with_sound_bounds(schema), json.dumps(number)):
        assert Draft202012Validator(schema).is_valid(number)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 5},
        {"const": {"exclusiveMinimum": 0, "maximum": 0.5}},
        {"properties": {"exclusiveMinimum": {"type": "string"}}},
    ],
)
def test_all_else_stays_as_it_is(schema: Any) -> None:
    assert with_sound_bounds(schema) == schema


def test_bounds_deep_within_a_schema_are_moved_too() -> None:
    inner = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    moved = with_sound_bounds({"properties": {"a": {"anyOf": [inner, {"type": "null"}]}}})
    assert moved["properties"]["a"]["anyOf"][0]["exclusiveMinimum"] == 1e-9
