"""A part of a model: layers that follow each other. Pure."""

import re
from dataclasses import dataclass

from cosine_protocol.errors import MalformedMessage, UsageError


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class LayerRange:
    """The layers from `first` to the one before `end`, counted from 0, of a model of so many `layers`.

    Raises `MalformedMessage` unless there is at least one, and all are layers of the model.
    """

    first: int
    end: int
    layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.layers:
            raise MalformedMessage(f"{self.first}:{self.end} are no layers of a model of {self.layers}")

    @classmethod
    def parse(cls, text: str, *, layers: int) -> "LayerRange":
        """The range that a user writes as `8:16`, the end not included. Raises `UsageError`."""
        found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
        try:
            if found is not None:
                return cls(first=int(found[1]), end=int(found[2]), layers=layers)
        except MalformedMessage:
            pass
        raise UsageError(
            f"'{text}' names no layers of a model of {layers}; write the first and the one after the last, "
            f"for example 0:{layers}."
        )

    @classmethod
    def whole(cls, layers: int) -> "LayerRange":
        """All layers of a model."""
        return cls(first=0, end=layers, layers=layers)

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.end

    @property
    def is_first(self) -> bool:
        """True if it begins with the model's first layer: it takes tokens."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """True if it ends with the model's last layer: it gives logits."""
        return self.end == self.layers

    def overlaps(self, other: "LayerRange") -> bool:
        """True if the two have a layer of one model in common."""
        return self.layers == other.layers and self.first < other.end and other.first < self.end

    def precedes(self, other: "LayerRange") -> bool:
        """True if the other begins where this one ends, in one model."""
        return self.layers == other.layers and self.end == other.first
