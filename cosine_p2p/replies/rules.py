"""Rules of a Lark grammar for what a reply must be, as llguidance reads it. Pure."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from cosine_p2p.replies.schema_bounds import with_sound_bounds

Split = Callable[[str], Sequence[str | int]]
"""Splits a text into plain text and the ids of special tokens."""

_SEPARATED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as templates write it: what is forced takes no pass, and no text can go on with white space alone."""
MAX_RULES: Final = 4096
"""Bounds the work; OpenAI's API has 128 tools, and schemas are small."""
NO_BOUND: Final[Mapping[str, Any]] = {}
_OPEN: Final = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if")
"""What may say that an object has more than its properties."""


class TooManyRules(ValueError):
    """The schemas of tools are too large, or name themselves without an end."""


class Rules:
    """Rules that are made one after the other, with names of their own. Raises `TooManyRules`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lines: list[str] = []

    def mark(self, text: str) -> str:
        """An expression for exactly this text, special tokens in it as such; empty for none."""
        return " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in self._split(text))

    def json(self, schema: Any, within: Any = None) -> str:
        """An expression for JSON by a schema; `within` is the one in which its references are looked up."""
        root = within if isinstance(within, Mapping) else {}
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        own = dict(schema) if isinstance(schema, Mapping) else {}
        whole = with_sound_bounds({**shared, **own}) | {"x-guidance": _SEPARATED}
        return self._rule("%json " + json.dumps(whole, ensure_ascii=False))

    def arguments(self, schema: Any) -> str:
        """An expression for the arguments of a function, an object."""
        own = dict(schema) if isinstance(schema, Mapping) else {}
        closed = {"additionalProperties": False} if not any(name in own for name in _OPEN) else {}
        return self.json({"type": "object", **closed, **own})

    def text_before(self, end: str, *, schema: Mapping[str, Any] = NO_BOUND) -> str:
        """An expression for any text and what ends it, which is not in it; `schema` may bound it."""
        first, *rest = self._split(end)
        tail = " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in rest)
        inner = _pattern(schema)
        name = f"TEXT_{len(self._lines)}"
        if isinstance(first, int):
            # No text has a special token in it.
            self._lines.append(f"{name}: /{inner}/")
            return f"{name}{'?' if _may_be_empty(inner) else ''} <[{first}]> {tail}".strip()
        ends = _escaped(first)
        self._lines.append(f"{name}: /{inner}{ends}/ & ~/(?s:.*){ends}(?s:.+)/")
        return f"{name} {tail}".strip()

    def fields(self, values: Mapping[str, str], needed: Collection[str], comma: str) -> str:
        """An expression for values with commas between them: the needed ones first, any others once or not at all.

        Where none is needed there is one at most.
        """
        first = [value for name, value in values.items() if name in needed]
        others = [value for name, value in values.items() if name not in needed]
        between = self.mark(comma)
        if first:
            return " ".join([f" {between} ".join(first), *(f"({between} {each})?" for each in others)])
        return f"{self.one_of(others)}?" if others else ""

    def one_of(self, expressions: Sequence[str]) -> str:
        """An expression for one of some others."""
        return self._rule(" | ".join(expressions))

    def grammar(self, start: str) -> str:
        """All rules, of which this expression is what a text must be."""
        return "\n".join([f"start: {start}", *self._lines])

    def _rule(self, expression: str) -> str:
        name = f"rule_{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        if len(self._lines) > MAX_RULES:
            raise TooManyRules
        return name


def _pattern(schema: Mapping[str, Any]) -> str:
    """A regular expression for the texts that a schema of text allows."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        begin = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") else "(?s:.*)"
        return begin + f"({pattern.removeprefix('^').removesuffix('$')})".replace("/", r"\/") + end
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) or isinstance(longest, int):
        return f"(?s:.{{{shortest or 0},{longest if isinstance(longest, int) else ''}}})"
    return "(?s:.*)"


def _may_be_empty(pattern: str) -> bool:
    """True if a regular expression matches nothing at all; one that Python does not know needs a letter."""
    try:
        return re.fullmatch(pattern, "") is not None
    except (re.error, OverflowError, RecursionError):
        return False


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A text as a regular expression of Rust between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
