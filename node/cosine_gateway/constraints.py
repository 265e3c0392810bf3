"""Constraints on the text: `response_format`, and the fields of vLLM, SGLang and llama.cpp."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cosine_gateway.api_errors import bad_value
from cosine_gateway.body import Body, flag, nested, schema_object, text

MAX_CHOICES: Final = 1024
"""Maximum number of alternative texts; the protocol bounds their total size."""
ANY_OBJECT: Final = {"type": "object"}

Options = dict[str, Any]
"""Client options by name: one for a constraint, none for a value that asks for no constraint."""


def read_constraint(body: Body) -> Options:
    """Return the client option for the constraint of a body, if it has one. Raises `ApiError`."""
    found = {
        name: options
        for name, read in CONSTRAINTS.items()
        if body.get(name) not in (None, False, "", [], {}) and (options := read(body[name], name))
    }
    if len(found) > 1:
        raise bad_value(next(iter(found)), f"{' and '.join(found)} all constrain the text: send one of them.")
    return next(iter(found.values()), {})


def schema(value: Any, name: str) -> Options:
    """Read a JSON schema, an object or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad_value(name, f"{name} must be a JSON schema.") from None
    return {"schema": json.dumps(schema_object(value, name), ensure_ascii=False)}


def _choice(value: Any, name: str) -> Options:
    """Read a list of alternative texts as a grammar."""
    if not isinstance(value, list) or len(value) > MAX_CHOICES:
        raise bad_value(name, f"{name} must be a list of at most {MAX_CHOICES} texts.")
    texts = [text(each, name) for each in value]
    if not all(texts):
        raise bad_value(name, f"The texts of {name} must not be empty.")
    return {"grammar": "start: " + " | ".join(json.dumps(each) for each in texts)}


def _any_object(value: Any, name: str) -> Options:
    return schema(ANY_OBJECT, name) if flag({name: value}, name) else {}


def _response_format(value: Any, name: str) -> Options:
    """Read OpenAI's field; llama.cpp's server also allows a schema in `json_object`."""
    match value:
        case {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return schema(value.get("schema") or ANY_OBJECT, f"{name}.schema")
        case {"type": "json_schema"}:
            given = value.get("json_schema")
            stated = given.get("schema") if isinstance(given, dict) else None
            return schema(ANY_OBJECT if stated is None else stated, f"{name}.json_schema.schema")
    raise bad_value(name, f"{name} must be an object of type text, json_object or json_schema.")


def _structured_outputs(value: Any, name: str) -> Options:
    """Read vLLM's object, in which one field is set."""
    inner = nested({name: value}, name, known=_STRUCTURED, neutral=(None, False))
    given = {field: each for field, each in inner.items() if each not in (None, False)}
    if len(given) > 1:
        raise bad_value(name, f"{name} must have one of {', '.join(_STRUCTURED)}.")
    return next((_STRUCTURED[field](each, f"{name}.{field}") for field, each in given.items()), {})


_STRUCTURED: Final[Mapping[str, Callable[[Any, str], Options]]] = {
    "json": schema,
    "regex": lambda value, name: {"regex": text(value, name)},
    "grammar": lambda value, name: {"grammar": text(value, name)},
    "choice": _choice,
    "json_object": _any_object,
}
CONSTRAINTS: Final[Mapping[str, Callable[[Any, str], Options]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    **{f"guided_{name}": read for name, read in _STRUCTURED.items()},
    "json_schema": schema,
    "regex": _STRUCTURED["regex"],
}
"""The readers of the fields that constrain the text."""
