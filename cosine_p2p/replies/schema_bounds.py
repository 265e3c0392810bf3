"""A correction of number bounds in JSON schemas for llguidance 1.9. Pure.

llguidance accepts 0 for {"exclusiveMinimum": 0, "maximum": 0.5}: an exclusive integer bound within one of the other
bound counts as inclusive. Such a bound is moved by a tiny step.
"""

from collections.abc import Mapping
from typing import Any, Final

from cosine_p2p.replies.schemas import each_within

STEP: Final = 1e-9  # Numbers this close to a moved bound are excluded.


def with_sound_bounds(schema: Any) -> Any:
    """Return the schema with corrected bounds. Raises `RecursionError` for one nested too deeply."""
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
