"""Tests of the analysis of JSON schemas."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from cosine_p2p.replies.llguidance_schemas import for_llguidance
from cosine_p2p.replies.schemas import Root, member_forms

TEXT: Final = {"type": "string"}
NUMBER: Final = {"type": "integer"}
BOUNDS = st.sampled_from([-4.5, -4, -3.5, -1, -0.5, 0, 0.5, 1, 2.5, 4, 10, 10.5])
BYTES: Final = LLTokenizer("byte")


def takes(grammar: str, text: str) -> bool:
    matcher, tokens = LLMatcher(BYTES, grammar), BYTES.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema}, **more}


def kinds(schema: Any) -> set[str]:
    return {kind for form in member_forms(Root(schema), "p") for kind in form.kinds}


@pytest.mark.parametrize(
    "schema",
    [
        of(TEXT),
        {"$ref": "#/definitions/A", "definitions": {"A": {"$ref": "#/definitions/B"}, "B": of(TEXT)}},
        {"allOf": [of({}), of(TEXT)]},
        {"anyOf": [{"type": "object", "properties": {"q": NUMBER}}, of(TEXT)]},
        {
            "type": "object",
            "properties": {"q": NUMBER},
            "additionalProperties": {"$ref": "#/$defs/A"},
            "$defs": {"A": TEXT},
        },
        {"type": "object", "patternProperties": {"^p$": TEXT, "^q": NUMBER}, "additionalProperties": NUMBER},
        {"if": {"required": ["q"]}, "then": of(TEXT)},
        of({"enum": ["1", "2"]}),
        of({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": TEXT}}),
        of({"$ref": "#named"}, **{"$defs": {"A": {"$anchor": "named", **TEXT}}}),
        of({"$ref": "T0"}, **{"$defs": {"A": {"$id": "T0", **TEXT}}}),
        {"allOf": [{"$ref": "#"}, of(TEXT)]},
    ],
)
def test_a_member_is_a_text_however_the_schema_says_so(schema: Any) -> None:
    assert kinds(schema) == {"string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (of({"type": ["string", "integer"]}), {"string", "integer"}),
        (of({"anyOf": [TEXT, {"type": "null"}]}), {"string", "null"}),
        (of({"type": "number", "enum": [1, "a"]}), {"integer"}),
        (of({}), set()),
        (of({"allOf": [TEXT, NUMBER]}), set()),
        (of({"$ref": "#/properties/p"}), set()),
        (of({"anyOf": [{"$ref": "#/properties/p"}, TEXT]}), {"string"}),
    ],
)
def test_the_types_of_a_member_are_those_that_all_of_its_schemas_name(schema: Any, expected: set[str]) -> None:
    assert kinds(schema) == expected


@given(BOUNDS, BOUNDS, st.booleans(), st.booleans(), BOUNDS)
def test_accepted_numbers_are_valid(low: float, high: float, is_above: bool, is_below: bool, number: float) -> None:
    names = "exclusiveMinimum" if is_above else "minimum", "exclusiveMaximum" if is_below else "maximum"
    schema = {"type": "number", names[0]: min(low, high), names[1]: max(low, high)}
    if takes(LLMatcher.grammar_from_json_schema(json.dumps(for_llguidance(schema))), json.dumps(number)):
        assert Draft202012Validator(schema).is_valid(number)


def test_a_map_of_any_names_is_taken() -> None:
    schema = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(for_llguidance(schema)))
    assert takes(grammar, '{"a": 1}') and not takes(grammar, '{"a": "b"}')


def test_bounds_deep_within_a_schema_are_moved_too() -> None:
    inner = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    moved = for_llguidance({"properties": {"a": {"anyOf": [inner, {"type": "null"}]}}})
    assert moved["properties"]["a"]["anyOf"][0]["exclusiveMinimum"] == 1e-9
