"""Rules of a Lark grammar of llguidance that force calls in a reply. Pure."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cosine_p2p.replies.llguidance_schemas import for_llguidance
from cosine_protocol.request import MAX_CONSTRAINT_BYTES

Split = Callable[[str], Sequence[str | int]]  # Splits a text into plain text and the ids of special tokens.

_SEPARATED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as in templates: forced tokens take no pass."""
_ANY_TEXT: Final = "(?s:.*)"
_OPEN: Final = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if")
"""Keys that may allow further properties of an object."""


class TooManyRules(ValueError):
    """The schemas of tools are too large, or there is no tool."""


class Rules:
    """A growing list of rules with unique names. Methods raise `TooManyRules`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lines: list[str] = []
        self._letters = 0

    def mark(self, text: str) -> str:
        """Return an expression for exactly this text with its special tokens; empty for none."""
        return _joined(self._split(text))

    def arguments(self, schema: Any) -> str:
        """Return an expression for the arguments of a function, an object as JSON."""
        own = dict(schema) if isinstance(schema, Mapping) else {}
        closed = {"additionalProperties": False} if not any(name in own for name in _OPEN) else {}
        whole = for_llguidance({"type": "object", **closed, **own})
        return self._add("rule", "%json " + json.dumps({**whole, "x-guidance": _SEPARATED}, ensure_ascii=False))

    def text_before(self, end: str) -> str:
        """Return an expression for a text and the `end` that it does not contain."""
        first, *rest = self._split(end)
        if isinstance(first, int):
            # A text contains no special token.
            return f"{self._add('TEXT', f'/{_ANY_TEXT}/')}? {_joined([first, *rest])}"
        ends = re.escape(first).replace("/", r"\/").replace("\\\n", r"\n")
        text = self._add("TEXT", f"/{_ANY_TEXT}{ends}/ & ~/{_ANY_TEXT}{ends}(?s:.+)/")
        return f"{text} {_joined(rest)}".strip()

    def one_of(self, expressions: Sequence[str]) -> str:
        if not expressions:
            raise TooManyRules
        return self._add("rule", " | ".join(expressions))

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines])

    def _add(self, kind: str, expression: str) -> str:
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        self._letters += len(expression)
        if self._letters > MAX_CONSTRAINT_BYTES:
            raise TooManyRules
        return name


def _joined(pieces: Sequence[str | int]) -> str:
    return " ".join(
        f"<[{each}]>" if isinstance(each, int) else json.dumps(each, ensure_ascii=False) for each in pieces
    )
