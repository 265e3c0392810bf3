"""What the clients written in Python ask for: a question, a tool, and an object that a text is parsed into."""

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
"""Of a tool named `weather`. A model of any size can fill them in."""


class River(BaseModel):
    """A river. Bounds of numbers would not do: the package `anthropic` makes them part of a description."""

    country: Literal["France", "Italy", "Norway"]
    is_navigable: bool
