"""Rules of a Lark grammar for what a reply must be, as llguidance reads it. Pure."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_p2p.replies.schema_bounds import with_sound_bounds
from cosine_p2p.replies.schemas import Others, Root, self_contained
from cosine_protocol.limits import MAX_CONSTRAINT_BYTES

Split = Callable[[str], Sequence[str | int]]  # Splits a text into plain text and the ids of special tokens.

_SEPARATED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as templates write it: what is forced takes no pass."""
_ANY_TEXT: Final = "(?s:.*)"
_NAME: Final = r"""[^\s"'`<>{}()\[\]:=,|｜]{1,64}"""  # A name in no format's way.
_ASCII: Final = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
_OPEN: Final = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if")
"""What may say that an object has more than its properties."""


class TooManyRules(ValueError):
    """The schemas of tools are too large, name themselves without an end, or allow no call."""


class Rules:
    """Rules that are made one after the other, with names of their own. Raises `TooManyRules`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lines: list[str] = []
        self._letters = 0
        self._made: dict[tuple[int, int], tuple[str, Any, Root]] = {}

    def mark(self, text: str) -> str:
        """An expression for exactly this text with its special tokens; empty for none."""
        return " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in self._split(text))

    def json(self, schema: Any, root: Root) -> str:
        """An expression for JSON by a schema."""
        own = with_sound_bounds(self_contained(schema, root))
        whole = {**(own if isinstance(own, dict) else {}), "x-guidance": _SEPARATED}
        return self._rule("%json " + json.dumps(whole, ensure_ascii=False))

    def arguments(self, schema: Any) -> str:
        """An expression for the arguments of a function, an object."""
        own = dict(schema) if isinstance(schema, Mapping) else {}
        closed = {"additionalProperties": False} if not any(name in own for name in _OPEN) else {}
        return self.json({"type": "object", **closed, **own}, Root(own))

    def text_before(self, end: str, schemas: Sequence[Mapping[str, Any]] = ()) -> str:
        """An expression for any text and the `end` that is not in it; all of some schemas may bound it."""
        first, *rest = self._split(end)
        tail = " ".join(f"<[{each}]>" if isinstance(each, int) else _quoted(each) for each in rest)
        inner = [pattern for each in schemas for pattern in _patterns(each)] or [_ANY_TEXT]
        if isinstance(first, int):
            # No text has a special token in it.
            name = self._add("TEXT", " & ".join(f"/{each}/" for each in inner))
            return f"{name}{'?' if all(map(_may_be_empty, inner)) else ''} <[{first}]> {tail}".strip()
        ends = _escaped(first)
        bounded = " & ".join(f"/{each}{ends}/" for each in inner)
        return f"{self._add('TEXT', f'{bounded} & ~/{_ANY_TEXT}{ends}(?s:.+)/')} {tail}".strip()

    def name(self, others: Others) -> str:
        """An expression for the name of a member that its schema does not name."""
        refused = [_found(each) for each in others.beside] + [_escaped(each) for each in others.names]
        conditions = [f"/{_found(each)}/" for each in others.patterns] + [f"~/({each})/" for each in refused]
        return self._add("NAME", " & ".join([f"/{_NAME}/", *conditions]))

    def fields(self, values: Mapping[str, str], needed: Collection[str], others: Sequence[str], comma: str) -> str:
        """Values with commas: the needed, others at most once (one in all without needed ones), then `others`."""
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
        return self._rule(" | ".join(expressions))

    def once(self, schema: Any, root: Root, make: Callable[[], str]) -> str:
        """An expression for a schema that may stand within itself."""
        key = id(schema), id(root)
        if key not in self._made:
            # Both are kept, since the ids of what is gone come again.
            self._made[key] = f"value_{len(self._made)}", schema, root
            self._lines.append(f"{self._made[key][0]}: {make()}")
        return self._made[key][0]

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines])

    def _rule(self, expression: str) -> str:
        return self._add("rule", expression)

    def _add(self, kind: str, expression: str) -> str:
        """The name of a new rule, or of a kind of token in capitals."""
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        self._letters += len(expression)
        if self._letters > MAX_CONSTRAINT_BYTES:
            raise TooManyRules
        return name


def ascii_classes(pattern: str) -> str:
    """A regular expression of ECMAScript or xgrammar as one of Rust: classes are those of ASCII."""
    return re.sub(r"\\.", lambda found: _ASCII.get(found[0], found[0]), pattern, flags=re.DOTALL)


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield _found(pattern)
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) or isinstance(longest, int):
        yield f"(?s:.{{{shortest or 0},{longest if isinstance(longest, int) else ''}}})"


def _found(pattern: str) -> str:
    """A regular expression for all texts in which another one is found."""
    begin = "" if pattern.startswith("^") else _ANY_TEXT
    end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else _ANY_TEXT
    inner = pattern.removeprefix("^")
    inner = ascii_classes(inner if end else inner.removesuffix("$"))
    slashed = re.sub(r"(\\.)|/", lambda each: each[1] or r"\/", inner)
    return f"{begin}({slashed}){end}"


def _may_be_empty(pattern: str) -> bool:
    """True if a regular expression matches nothing at all; one unknown to Python needs a letter."""
    try:
        return re.fullmatch(pattern, "") is not None
    except (re.error, OverflowError, RecursionError):
        return False


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A text as a regular expression of Rust between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
