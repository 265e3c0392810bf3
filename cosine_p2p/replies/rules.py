"""Rules of a Lark grammar of llguidance that constrain a reply. Pure."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_p2p.replies.schema_bounds import with_sound_bounds
from cosine_p2p.replies.schemas import Others, Root, self_contained
from cosine_protocol.limits import MAX_CONSTRAINT_BYTES

Split = Callable[[str], Sequence[str | int]]  # Splits a text into plain text and the ids of special tokens.

_SEPARATED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as in templates: forced tokens take no pass."""
_ANY_TEXT: Final = "(?s:.*)"
_NAME: Final = r"""[^\s"'`<>{}()\[\]:=,|｜]{1,64}"""  # A name without any format's delimiters.
_ASCII: Final = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
_OPEN: Final = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if")
"""Keys that may allow further properties of an object."""


class TooManyRules(ValueError):
    """The schemas of tools are too large, recursive without an end, or allow no call."""


class Rules:
    """A growing list of rules with unique names. Methods raise `TooManyRules`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lines: list[str] = []
        self._letters = 0
        self._made: dict[tuple[int, int], tuple[str, Any, Root]] = {}

    def mark(self, text: str) -> str:
        """Return an expression for exactly this text with its special tokens; empty for none."""
        return " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in self._split(text))

    def json(self, schema: Any, root: Root) -> str:
        """Return an expression for JSON of a schema."""
        own = with_sound_bounds(self_contained(schema, root))
        whole = {**(own if isinstance(own, dict) else {}), "x-guidance": _SEPARATED}
        return self._add("rule", "%json " + json.dumps(whole, ensure_ascii=False))

    def arguments(self, schema: Any) -> str:
        """Return an expression for the arguments of a function, an object."""
        own = dict(schema) if isinstance(schema, Mapping) else {}
        closed = {"additionalProperties": False} if not any(name in own for name in _OPEN) else {}
        return self.json({"type": "object", **closed, **own}, Root(own))

    def text_before(self, end: str, schemas: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return an expression for a text, bounded by all `schemas`, and the `end` that it does not contain."""
        first, *rest = self._split(end)
        tail = " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in rest)
        inner = [pattern for each in schemas for pattern in _patterns(each)] or [_ANY_TEXT]
        if isinstance(first, int):
            # A text contains no special token.
            name = self._add("TEXT", " & ".join(f"/{each}/" for each in inner))
            return f"{name}{'?' if all(map(_may_be_empty, inner)) else ''} <[{first}]> {tail}".strip()
        ends = _escaped(first)
        bounded = " & ".join(f"/{each}{ends}/" for each in inner)
        return f"{self._add('TEXT', f'{bounded} & ~/{_ANY_TEXT}{ends}(?s:.+)/')} {tail}".strip()

    def name(self, others: Others) -> str:
        """Return an expression for the name of an additional member."""
        refused = [_found(each) for each in others.beside] + [_escaped(each) for each in others.names]
        conditions = [f"/{_found(each)}/" for each in others.patterns] + [f"~/({each})/" for each in refused]
        return self._add("NAME", " & ".join([f"/{_NAME}/", *conditions]))

    def fields(self, values: Mapping[str, str], needed: Collection[str], others: Sequence[str], comma: str) -> str:
        """Return an expression for members: needed ones, optional ones (one if none is needed), then `others`."""
        first = [value for name, value in values.items() if name in needed]
        more = [value for name, value in values.items() if name not in needed]
        between = self.mark(comma)
        rest = f"({between} {self.one_of(others)})*" if others else ""
        if first:
            return " ".join([f" {between} ".join(first), *(f"({between} {each})?" for each in more), rest])
        return f"({self.one_of([*more, *others])} {rest})?" if more or others else ""

    def one_of(self, expressions: Sequence[str]) -> str:
        if not expressions:
            raise TooManyRules
        return self._add("rule", " | ".join(expressions))

    def once(self, schema: Any, root: Root, make: Callable[[], str]) -> str:
        """Return an expression for a schema that may be recursive."""
        key = id(schema), id(root)
        if key not in self._made:
            # References to both keep their ids unique.
            self._made[key] = f"value_{len(self._made)}", schema, root
            self._lines.append(f"{self._made[key][0]}: {make()}")
        return self._made[key][0]

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines])

    def _add(self, kind: str, expression: str) -> str:
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        self._letters += len(expression)
        if self._letters > MAX_CONSTRAINT_BYTES:
            raise TooManyRules
        return name


def ascii_classes(pattern: str) -> str:
    """Convert a regular expression of ECMAScript or xgrammar to Rust: classes are ASCII."""
    return re.sub(r"\\.", lambda found: _ASCII.get(found[0], found[0]), pattern, flags=re.DOTALL)


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield _found(pattern)
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) or isinstance(longest, int):
        yield f"(?s:.{{{shortest or 0},{longest if isinstance(longest, int) else ''}}})"


def _found(pattern: str) -> str:
    """Return a regular expression that searches for another one."""
    begin = "" if pattern.startswith("^") else _ANY_TEXT
    end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else _ANY_TEXT
    inner = pattern.removeprefix("^")
    inner = ascii_classes(inner if end else inner.removesuffix("$"))
    slashed = re.sub(r"(\\.)|/", lambda each: each[1] or r"\/", inner)
    return f"{begin}({slashed}){end}"


def _may_be_empty(pattern: str) -> bool:
    """Return whether a regular expression matches the empty text; false if Python cannot read it."""
    try:
        return re.fullmatch(pattern, "") is not None
    except (re.error, OverflowError, RecursionError):
        return False


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
