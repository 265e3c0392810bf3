"""The fields of a chat for tools and their choice."""

from collections.abc import Sequence
from typing import Any, Final

from cosine_node.gateway.api_errors import bad_value, unsupported
from cosine_node.gateway.body import Body, ascii_name, is_unicode, text, unicode_throughout
from cosine_p2p.request.chat import NamedTool, ToolChoice

MAX_TOOLS: Final = 128
"""The limit of OpenAI's API."""


def read_tools(body: Body) -> list[dict[str, Any]] | None:
    """Read the functions, None if there are none. Raises `ApiError`."""
    tools = body.get("tools")
    if not tools:
        return None
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise bad_value("tools", f"tools must be a list of at most {MAX_TOOLS} functions.")
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        kind = tool.get("type", "function") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise bad_value(path, f"{path} must be an object of type function.")
        if kind != "function":
            shown = kind if is_unicode(kind) else "that"
            raise unsupported(f"{path}.type", f"{path} is of type {shown}; a target calls only functions.")
        function = tool.get("function")
        if not isinstance(function, dict) or not text(function.get("name"), f"{path}.function.name"):
            raise bad_value(f"{path}.function", f"{path}.function must be an object with a name.")
        if not isinstance(function.get("parameters"), dict | None):
            raise bad_value(f"{path}.function.parameters", f"{path}.function.parameters must be a JSON schema.")
    found: list[dict[str, Any]] = unicode_throughout(tools, "tools")
    return found


def read_tool_choice(
    body: Body, tools: Sequence[dict[str, Any]] | None
) -> tuple[ToolChoice | NamedTool, Sequence[dict[str, Any]] | None]:
    """Read the choice, and the tools that it allows. Raises `ApiError`."""
    choice = body.get("tool_choice")
    match choice:
        case None:
            return ToolChoice.AUTO, tools
        case "none" | "auto" | "required":
            if choice == "required" and not tools:
                raise bad_value("tool_choice", "tool_choice required needs tools to choose from.")
            return ToolChoice(choice), tools
        case {"type": "function", "function": {"name": str(name)}}:
            return NamedTool(_known(name, tools)), tools
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)},
        }:
            names = {_known(_name_of(each), tools) for each in allowed}
            return ToolChoice(mode), [each for each in tools or () if each["function"]["name"] in names]
    raise bad_value("tool_choice", "tool_choice must be none, auto, required, a function, or allowed_tools.")


def _name_of(tool: Any) -> str:
    match tool:
        case {"function": {"name": str(name)}}:
            return name
    raise bad_value("tool_choice", "The tools of tool_choice must be functions with a name.")


def _known(name: str, tools: Sequence[dict[str, Any]] | None) -> str:
    if name not in {each["function"]["name"] for each in tools or ()}:
        raise bad_value("tool_choice", f"tool_choice names {ascii_name(name)}, which is not one of the tools.")
    return name
