"""Constraints on the text: `response_format`, and the fields of vLLM, SGLang and llama.cpp."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import Body, ascii_name, flag, text, unicode_throughout

MAX_CHOICES: Final = 1024
"""Maximum number of alternative texts; the protocol bounds their total size."""
ANY_OBJECT: Final = {"type": "object"}

Option = tuple[str, Any]
"""The name and value of a client option."""


def read_constraint(body: Body) -> dict[str, Any]:
    """Return the client option for the constraint of a body, if it has one. Raises `ApiError`."""
    found = {}
    for name, read in _READERS.items():
        value = body.get(name)
        if value in (None, False, "", [], {}):
            continue
        if (option := read(value, name)) is not None:
            found[name] = option
    if len(found) > 1:
        raise bad_value(next(iter(found)), f"{' and '.join(found)} all constrain the text: send one of them.")
    return dict(found.values())


def schema(value: Any, name: str) -> Option:
    """Read a JSON schema, an object or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad_value(name, f"{name} must be a JSON schema.") from None
    if not isinstance(value, dict):
        raise bad_value(name, f"{name} must be a JSON schema: an object.")
    return "schema", json.dumps(unicode_throughout(value, name), ensure_ascii=False)


def _regex(value: Any, name: str) -> Option | None:
    return "regex", text(value, name)


def _grammar(value: Any, name: str) -> Option | None:
    return "grammar", text(value, name)


def _choice(value: Any, name: str) -> Option | None:
    """Read a list of alternative texts as a grammar."""
    if not isinstance(value, list) or len(value) > MAX_CHOICES:
        raise bad_value(name, f"{name} must be a list of at most {MAX_CHOICES} texts.")
    texts = [text(each, name) for each in value]
    if not all(texts):
        raise bad_value(name, f"The texts of {name} must not be empty.")
    return "grammar", "start: " + " | ".join(json.dumps(each) for each in texts)


def _any_object(value: Any, name: str) -> Option | None:
    return schema(ANY_OBJECT, name) if flag({name: value}, name) else None


def _response_format(value: Any, name: str) -> Option | None:
    """Read OpenAI's field; llama.cpp's server also allows a schema in `json_object`."""
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return schema(value.get("schema") or ANY_OBJECT, f"{name}.schema")
        case {"type": "json_schema"}:
            given = value.get("json_schema")
            stated = given.get("schema") if isinstance(given, dict) else None
            return schema(ANY_OBJECT if stated is None else stated, f"{name}.json_schema.schema")
    raise bad_value(name, f"{name} must be an object of type text, json_object or json_schema.")


def _structured_outputs(value: Any, name: str) -> Option | None:
    """Read vLLM's object, in which one field is set."""
    if not isinstance(value, dict):
        raise bad_value(name, f"{name} must be an object.")
    given = {field: inner for field, inner in value.items() if inner not in (None, False)}
    for field in given:
        if field not in _STRUCTURED:
            raise unsupported(f"{name}.{ascii_name(field)}")
    if len(given) > 1:
        raise bad_value(name, f"{name} must have one of {', '.join(_STRUCTURED)}.")
    return next((_STRUCTURED[field](inner, f"{name}.{field}") for field, inner in given.items()), None)


_STRUCTURED: Final[Mapping[str, Callable[[Any, str], Option | None]]] = {
    "json": schema,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
    "json_object": _any_object,
}
_READERS: Final[Mapping[str, Callable[[Any, str], Option | None]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": schema,
    "guided_regex": _regex,
    "guided_grammar": _grammar,
    "guided_choice": _choice,
    "guided_json_object": _any_object,
    "json_schema": schema,
    "regex": _regex,
}
CONSTRAINTS: Final = frozenset(_READERS)
"""The fields that constrain the text."""
