"""An analysis of JSON schemas: types of members, and references. Pure.

References are JSON pointers (RFC 6901) or names (`$anchor`, `$id`), resolved in a `Root`: the whole schema of a
function's arguments. A schema is a set of alternative `Form`s.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, Final
from urllib.parse import unquote

MAX_FORMS: Final = 256  # Alternatives of one value; further ones are ignored.
MAX_SCHEMAS: Final = 1024
MAX_DEPTH: Final = 32  # Bounds of the schemas examined for one value.
_COMBINING: Final = frozenset({"$defs", "definitions", "$id", "$anchor", "$ref", "allOf", "anyOf", "oneOf"})
_HINTS: Final = {
    "string": ("pattern", "minLength", "maxLength", "format"),
    "object": ("properties", "patternProperties", "additionalProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""The types implied by keywords in schemas without a type."""


@dataclass(frozen=True, slots=True)
class Form:
    """One alternative of a value: all of these schemas hold, which have no combinations or references."""

    schemas: tuple[Mapping[str, Any], ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The JSON types that the schemas state or imply, "integer" with "number"; empty for any type."""
        stated = [kinds for each in self.schemas for kinds in _stated(each)]
        if stated:
            return frozenset.intersection(*stated)
        return frozenset(
            kind for kind, names in _HINTS.items() if any(name in each for each in self.schemas for name in names)
        )

    @property
    def is_possible(self) -> bool:
        return bool(self.kinds) or not any(True for each in self.schemas for _ in _stated(each))

    @property
    def listed(self) -> list[Any] | None:
        """The allowed values, None if they are not enumerated."""
        lists = [values for each in self.schemas for values in _lists(each)]
        return [value for value in lists[0] if all(value in other for other in lists)] if lists else None

    def member(self, name: str) -> Any:
        return joined([of for each in self.schemas for of in _said(each, name)])


class Root:
    """The whole schema, in which references are resolved."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def target(self, reference: Any) -> Any:
        """Return the target of a reference, or None."""
        if not isinstance(reference, str):
            return None
        pointer = unquote(reference[1:])
        if reference != "#" and not (reference.startswith("#") and pointer.startswith("/")):
            return self._named.get(reference)
        found = self.schema
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(index): each for index, each in enumerate(found)}
            found = _mapping(found).get(name)
        return found

    @cached_property
    def _named(self) -> dict[str, Any]:
        named: dict[str, Any] = {}
        waiting = [self.schema]
        while waiting:
            each = waiting.pop()
            if isinstance(each, Mapping):
                waiting += each.values()
                for name in (each.get("$id"), f"#{each.get('$anchor')}"):
                    named.setdefault(str(name), each)
            elif isinstance(each, list):
                waiting += each
        return named


def joined(schemas: list[Any]) -> Any:
    return {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else {}


def forms(schema: Any, root: Root) -> list[Form]:
    """Return the alternatives of a schema; none if it allows no value or is too large."""
    left = iter(range(MAX_SCHEMAS))

    def found(schema: Any, above: frozenset[int]) -> list[tuple[Mapping[str, Any], ...]]:
        if id(schema) in above or not isinstance(schema, Mapping):
            return [] if schema is False else [()]
        if next(left, None) is None or len(above) >= MAX_DEPTH:
            return []
        above |= {id(schema)}
        own = {name: value for name, value in schema.items() if name not in _COMBINING}
        ways: list[list[tuple[Mapping[str, Any], ...]]] = [[(own,) if own else ()]]
        ways += [found(each, above) for each in _listed(schema.get("allOf"))]
        if "$ref" in schema:
            ways.append(found(root.target(schema["$ref"]), above))
        for name in ("anyOf", "oneOf"):
            if options := _listed(schema.get(name)):
                ways.append([way for option in options for way in found(option, above)])
        return [tuple(chain.from_iterable(each)) for each in islice(product(*ways), MAX_FORMS)]

    return [form for each in found(schema, frozenset()) if (form := Form(each)).is_possible]


def member_forms(root: Root, name: str) -> list[Form]:
    """Return the forms of a member of an object by the whole schema."""
    objects = forms(root.schema, root)
    for condition in ("if", "then", "else", "dependentSchemas"):
        own = _mapping(root.schema).get(condition)
        inner = _mapping(own).values() if condition == "dependentSchemas" else [{} if own is None else own]
        objects += [form for each in inner for form in forms(each, root)]
    said = [form.member(name) for form in objects]
    return [form for each in said if each != {} for form in forms(each, root)]


def _said(schema: Mapping[str, Any], name: str) -> list[Any]:
    said = [of for own, of in _mapping(schema.get("properties")).items() if own == name]
    said += [of for pattern, of in _mapping(schema.get("patternProperties")).items() if _may_match(pattern, name)]
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    return said or ([] if rest in (None, True) else [rest])


def _may_match(pattern: str, name: str) -> bool:
    """Return whether a regular expression matches in a name; true if it is too complex to try."""
    if len(re.findall(r"[*+{]", pattern)) > 2 or re.search(r"\)[*+?{]|\\\d", pattern):
        return True
    try:
        return re.search(pattern, name[:64], re.ASCII) is not None
    except (re.error, OverflowError, RecursionError):
        return True


def _stated(schema: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    kinds = frozenset(_texts([schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")))
    for each in (kinds, *(frozenset(map(_kind, values)) for values in _lists(schema))):
        if each:
            yield each | {"integer"} if "number" in each else each


def _lists(schema: Mapping[str, Any]) -> Iterator[list[Any]]:
    if listed := _listed(schema.get("enum")):
        yield listed
    if "const" in schema:
        yield [schema["const"]]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [each for each in _listed(value) if isinstance(each, str)]


def _kind(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")
