"""Small random JSON schemas, and the check of a text against one."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "table", "ns"])


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[::2],
            "additionalProperties": False,
        }
    )


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"enum": [1, "a", None, "ab"]},
            {"const": [1, 2]},
            {"type": "integer", "minimum": -5, "maximum": 120},
            {"type": "string", "maxLength": 3},
            {"type": "string", "pattern": "^[ab]{2}$"},
        ]
    ),
    lambda inner: st.one_of(
        _objects(inner),
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
    ),
    max_leaves=4,
)
SCHEMAS: st.SearchStrategy[str] = _VALUES.map(json.dumps)


def check_json(text: str, schema: str) -> None:
    """Raise for a text that is invalid JSON, or not allowed by the schema."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(text), json.loads(schema))
