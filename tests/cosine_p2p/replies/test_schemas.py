"""A schema says types and members in many ways, which mean the same to who reads a call and to who forces one."""

import json
from typing import Any, Final

import pytest
from llguidance import LLMatcher, LLTokenizer

from cosine_p2p.replies.rules import Rules
from cosine_p2p.replies.schemas import Root, member_forms

TEXT: Final = {"type": "string"}
NUMBER: Final = {"type": "integer"}
BYTES: Final = LLTokenizer("byte")


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema}, **more}


def kinds(schema: Any, name: str = "p") -> set[str]:
    return {kind for form in member_forms(Root(schema), name) for kind in form.kinds}


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


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\d{3}$", ["123"], ["12", "٣٣٣", "1234"]),
        (r"^[\d.]+$", ["1.5"], ["٣", "a"]),
        (r"\w/\D", ["a/b", "xa/bx", "_/é"], ["é/b", "a/5", "ab"]),
        (r"^\w\/\\d$", [r"a/\d"], ["a/5"]),
    ],
)
def test_a_pattern_is_one_of_ecmascript(pattern: str, right: list[str], wrong: list[str]) -> None:
    """As within JSON, where llguidance reads patterns so by itself."""
    rules = Rules(lambda text: [text])
    tagged = rules.grammar(rules.text_before("<", [{"type": "string", "pattern": pattern}]))
    by_json = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    for text in right + wrong:
        for grammar, written in ((tagged, f"{text}<"), (by_json, json.dumps(text, ensure_ascii=False))):
            matcher, tokens = LLMatcher(BYTES, grammar), BYTES.tokenize_str(written)
            is_taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert is_taken == (text in right), (text, grammar)
