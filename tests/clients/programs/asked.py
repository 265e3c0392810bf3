"""The question, the tool and the output type of the clients written in Python."""

from typing import Any, Literal

from pydantic import BaseModel

QUESTION = "Name a river in France."
CITIES = ("Paris", "Rome", "Oslo")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": list(CITIES)},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
"""The parameters of a tool `weather`, which any model can fill in."""


class River(BaseModel):
    """A river. It has no bounds of numbers, as the package `anthropic` moves these to the description."""

    country: Literal["France", "Italy", "Norway"]
    is_navigable: bool
