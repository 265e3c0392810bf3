"""The tools of a response: functions, namespaces and custom tools, all converted to functions. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import (
    Body,
    Json,
    objects,
    required,
    schema_object,
    stated_text,
    text,
    text_field,
    wrong_type,
)
from cosine_p2p.request.chat import NamedTool, ToolChoice

LEFT_OUT: Final = (
    "image_generation", "web_search", "web_search_2025_08_26", "web_search_preview",
    "web_search_preview_2025_03_11",
)  # fmt: skip
"""Tools that OpenAI's server runs, which are ignored because Codex always sends them. A tuple, as a type in a body
may be unhashable."""
INPUT: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a custom tool, whose input is text."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; the model knows it by its `flat_name`, which includes the namespace."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def flat_name(self) -> str:
        # In OpenAI's API and most call formats, names consist of letters, digits, _ and -.
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a response: `told` are their definitions for a chat, `shown` those in the body."""

    told: tuple[Json, ...] = ()
    shown: tuple[Json, ...] = ()
    by_name: Mapping[str, Tool] = field(default_factory=dict)

    @classmethod
    def read(cls, body: Body) -> "Tools":
        """Read the tools of a body. Raises `ApiError`."""
        told: list[Json] = []
        by_name: dict[str, Tool] = {}
        shown = []
        for index, definition in enumerate(objects(body.get("tools") or [], "tools")):
            if definition.get("type") in LEFT_OUT:
                continue
            shown.append(definition)
            for tool, function in _functions(definition, f"tools[{index}]"):
                if tool.flat_name in by_name:
                    raise bad_value("tools", f"Two tools have the name {tool.flat_name}.")
                by_name[tool.flat_name] = tool
                told.append({"type": "function", "function": {"name": tool.flat_name, **function}})
        return cls(tuple(told), tuple(shown), by_name)

    def chosen(self, body: Body) -> tuple[ToolChoice | NamedTool, tuple[Json, ...]]:
        """Read the tool choice, and return the definitions of the allowed tools. Raises `ApiError`."""
        choice = body.get("tool_choice")
        match choice:
            case None:
                return ToolChoice.AUTO, self.told
            case "auto" | "none" | "required":
                return ToolChoice(choice), self.told
            case {"type": "function" | "custom", "name": str()}:
                return NamedTool(self._known(choice)), self.told
            case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
                names = {self._known(each) for each in allowed if _type(each) not in LEFT_OUT}
                return ToolChoice(mode), tuple(each for each in self.told if each["function"]["name"] in names)
        raise unsupported("tool_choice", "tool_choice must be auto, none, required, a function or allowed_tools.")

    def _known(self, choice: Any) -> str:
        """Return the flat name of a tool that a choice names."""
        given = choice if isinstance(choice, dict) else {}
        name, namespace = given.get("name"), given.get("namespace")
        tools = self.by_name.items()
        found = next(
            (flat for flat, tool in tools if name == tool.name and namespace in (None, tool.namespace)), None
        )
        if found is None:
            raise bad_value("tool_choice", "tool_choice names a tool that is not among tools.")
        return found


def _functions(definition: Json, path: str) -> Iterator[tuple[Tool, Json]]:
    """Yield the tools of one definition with their functions, without names. Raises `ApiError`."""
    match _type(definition):
        case "function":
            yield Tool(_name(definition, path)), _described(definition, path)
        case "custom":
            yield Tool(_name(definition, path), is_custom=True), _custom(definition, path)
        case "namespace":
            namespace = _name(definition, path)
            inner = required(definition, "tools", path=f"{path}.tools")
            for index, each in enumerate(objects(inner, f"{path}.tools")):
                inner_path = f"{path}.tools[{index}]"
                if _type(each) == "namespace":
                    raise unsupported(f"{inner_path}.type", f"{inner_path} is a namespace in a namespace.")
                for tool, function in _functions(each, inner_path):
                    yield Tool(tool.name, namespace, tool.is_custom), function
        case _:
            raise wrong_type(definition, path, "only function, custom and namespace are supported")


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _name(definition: Json, path: str) -> str:
    name = text_field(definition, "name", path)
    if not name:
        raise bad_value(f"{path}.name", f"{path}.name must not be empty.")
    return name


def _described(definition: Json, path: str) -> Json:
    """Read the description and parameters of a function."""
    found: Json = {}
    if (description := stated_text(definition, "description", path)) is not None:
        found["description"] = description
    if definition.get("parameters") is not None:
        found["parameters"] = schema_object(definition["parameters"], f"{path}.parameters")
    return found


def _custom(definition: Json, path: str) -> Json:
    """Convert a custom tool to a function of one text; the grammar of its input is described, not enforced."""
    told = [] if (description := stated_text(definition, "description", path)) is None else [description]
    match definition.get("format"):
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "syntax": "lark" | "regex" as syntax, "definition": str(grammar)}:
            text(grammar, f"{path}.format.definition")
            told.append(f"The input must match this grammar ({syntax}):\n{grammar}")
        case _:
            raise bad_value(f"{path}.format", f"{path}.format must be of type text, or grammar of lark or regex.")
    return {"description": "\n\n".join(told), "parameters": INPUT}


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool from the arguments of its call, or else the arguments unchanged."""
    try:
        match json.loads(arguments):
            case {"input": str(said)}:
                return said
    except (ValueError, RecursionError):
        pass
    return arguments


def custom_arguments(said: str) -> str:
    """Return the arguments of a custom tool's call."""
    return json.dumps({"input": said}, ensure_ascii=False)
