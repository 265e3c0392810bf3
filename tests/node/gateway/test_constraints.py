"""What a text must be: the fields of OpenAI, vLLM, SGLang and llama.cpp's server are options of a client."""

import json
from typing import Any, Final

import pytest

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.constraints import CONSTRAINTS, read_constraint
from cosine_node.gateway.text_request import parse_chat, parse_completion
from cosine_protocol.request import Constraint, ConstraintKind
from tests.node.engine.letter_grammars import END, LETTERS, fault, letter_grammars

SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {"b": {}, "a": {}}}
AS_SCHEMA: Final = {"schema": json.dumps(SCHEMA)}
ANY_OBJECT: Final = {"schema": '{"type": "object"}'}


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("response_format", {"type": "text"}, {}),
        ("response_format", {"type": "json_object"}, ANY_OBJECT),
        ("response_format", {"type": "json_object", "schema": SCHEMA}, AS_SCHEMA),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
            AS_SCHEMA,
        ),
        ("guided_json", SCHEMA, AS_SCHEMA),
        ("guided_json", json.dumps(SCHEMA), AS_SCHEMA),
        ("guided_json_object", True, ANY_OBJECT),
        ("guided_regex", "a+", {"regex": "a+"}),
        ("guided_grammar", 'start: "a"', {"grammar": 'start: "a"'}),
        ("guided_choice", ["yes", 'n"o'], {"grammar": 'start: "yes" | "n\\"o"'}),
        ("json_schema", SCHEMA, AS_SCHEMA),
        ("regex", "a+", {"regex": "a+"}),
        ("structured_outputs", {"json": SCHEMA, "regex": None}, AS_SCHEMA),
        ("structured_outputs", {"regex": "a+"}, {"regex": "a+"}),
        ("structured_outputs", {"choice": ["a"]}, {"grammar": 'start: "a"'}),
        ("structured_outputs", {"json_object": True}, ANY_OBJECT),
    ],
)
def test_each_field_is_the_option_that_means_the_same(name: str, value: Any, option: dict[str, Any]) -> None:
    assert read_constraint({name: value}) == option
    assert parse_chat({"messages": [{"role": "user", "content": "hi"}], name: value}).asked == option
    assert parse_completion({"prompt": "hi", name: value}).asked == option


@pytest.mark.parametrize("name", sorted(CONSTRAINTS - {"response_format"}))
@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_a_field_that_asks_for_nothing_constrains_nothing(name: str, value: Any) -> None:
    assert read_constraint({name: value}) == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, None),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_json_object": 5}, "guided_json_object"),
        ({"structured_outputs": {"unheard_of": 1}}, "structured_outputs.unheard_of"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
    ],
)
def test_what_means_nothing_is_refused_by_name(body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        read_constraint(body)
    assert refused.value.status == 400
    assert param is None or refused.value.param == param


def test_a_choice_allows_its_texts_and_nothing_else() -> None:
    [(_, grammar)] = read_constraint({"guided_choice": ["ab", 'a"', "n\\{"]}).items()
    constraint = Constraint(ConstraintKind.GRAMMAR, grammar, (END,))
    assert fault(constraint) == ""
    guide = letter_grammars().guide(constraint)
    for text, is_allowed in (("ab", True), ('a"', True), ("a", True), ("b", False), ("aba", False)):
        [mask] = guide.masks((), [tuple(LETTERS.index(letter) for letter in text)])
        assert (mask is not None) is is_allowed
