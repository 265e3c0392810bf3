"""Corrections of JSON schemas for llguidance 1.9. Pure.

It accepts 0 for {"exclusiveMinimum": 0, "maximum": 0.5}: an exclusive integer bound within one of the other bound
counts as inclusive. Such a bound is moved by a tiny step. It refuses `propertyNames`, also those that are strings.
"""

from collections.abc import Mapping
from typing import Any, Final

STEP: Final = 1e-9  # Numbers this close to a moved bound are excluded.
_ANY_NAME: Final = ("propertyNames", {"type": "string"})  # Zod's form of a map; every name is a string.
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name."""
_VALUES: Final = frozenset({"const", "enum", "default", "examples", "x-guidance"})  # Keywords without schemas.


def for_llguidance(schema: Any) -> Any:
    """Return the corrected schema. Raises `RecursionError` for one nested too deeply."""
    if not isinstance(schema, Mapping):
        return schema
    sound = {name: _corrected(name, value) for name, value in schema.items() if (name, value) != _ANY_NAME}
    lows = [low for name in ("minimum", "exclusiveMinimum") if (low := _number(schema.get(name))) is not None]
    highs = [high for name in ("maximum", "exclusiveMaximum") if (high := _number(schema.get(name))) is not None]
    if schema.get("type") == "integer" or not lows or not highs or min(highs) - max(lows) > 1:
        return sound
    for name, way in (("exclusiveMinimum", STEP), ("exclusiveMaximum", -STEP)):
        bound = _number(schema.get(name))
        if bound is not None and bound.is_integer():
            sound[name] = bound + way
    return sound


def _corrected(name: str, value: Any) -> Any:
    """Return a keyword's value with corrected subschemas."""
    if name in _VALUES:
        return value
    if name in _MAPS and isinstance(value, Mapping):
        return {key: for_llguidance(each) for key, each in value.items()}
    return list(map(for_llguidance, value)) if isinstance(value, list) else for_llguidance(value)


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6
        else None
    )
