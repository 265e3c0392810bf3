"""Bounds of numbers in JSON schemas, as llguidance 1.9 holds them. Pure.

llguidance takes 0 for {"exclusiveMinimum": 0, "maximum": 0.5}: an exclusive whole bound within one of the other is
allowed itself. Such a bound is moved by less than anybody writes.
"""

from collections.abc import Mapping
from typing import Any, Final

from cosine_p2p.replies.schemas import each_within

STEP: Final = 1e-9  # How far a bound is moved: numbers so near it are lost.


def with_sound_bounds(schema: Any) -> Any:
    """The schema as llguidance has to read it. Raises `RecursionError` for one nested too deeply."""
    if not isinstance(schema, Mapping):
        return schema
    sound = each_within(schema, with_sound_bounds)
    lows = [low for name in ("minimum", "exclusiveMinimum") if (low := _number(schema.get(name))) is not None]
    highs = [high for name in ("maximum", "exclusiveMaximum") if (high := _number(schema.get(name))) is not None]
    if schema.get("type") == "integer" or not lows or not highs or min(highs) - max(lows) > 1:
        return sound
    for name, way in (("exclusiveMinimum", STEP), ("exclusiveMaximum", -STEP)):
        bound = _number(schema.get(name))
        if bound is not None and bound.is_integer():
            sound[name] = bound + way
    return sound


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6
        else None
    )
