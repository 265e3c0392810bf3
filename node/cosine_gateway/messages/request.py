"""Requests for messages: their fields, tools and turns."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import (
    Body,
    Json,
    conversation,
    flag,
    nested,
    objects,
    required,
    schema_object,
    stated_text,
    text_field,
    unicode_throughout,
    wrong_type,
)
from cosine_gateway.constraints import CONSTRAINTS, schema
from cosine_gateway.fields import HARMLESS, NOTHING, REFUSED, RequestFields, refused
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import COMMON_FIELDS, TextRequest, text_request
from cosine_gateway.turns import BETWEEN, ConversationTurns
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice

FIELDS: Final = RequestFields(
    honoured=COMMON_FIELDS
    - {*CONSTRAINTS, "max_completion_tokens", "max_output_tokens", "n", "stop", "stream_options"}
    | {
        "context_management", "messages", "output_config", "output_format", "system", "thinking", "tool_choice",
        "tools",
    },
    harmless=HARMLESS | {
        "billing_policy", "diagnostics", "fallback_credit_token", "speed", "user_profile_id", "workspace_id",
    },
    refused={
        **REFUSED,
        **refused("the gateway stores and runs nothing", container=NOTHING, mcp_servers=NOTHING, thread=()),
        **refused("a conversation is used unchanged; shorten it yourself", compaction=NOTHING),
        **refused("the target is served unchanged", fallbacks=NOTHING),
        **refused("the location of peers cannot be chosen", inference_geo=("global",)),
        **refused("its name here is max_tokens", max_completion_tokens=(), max_output_tokens=()),
        **refused("a message is one text; send several requests", n=(1,)),
        **refused("its name here is stop_sequences", stop=()),
        **refused("a stream always includes its usage", stream_options=NOTHING),
        **refused("its name here is output_config.format", response_format=()),
        **refused("its name here is output_config.effort", reasoning_effort=()),
    },
)  # fmt: skip

EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's levels of effort, and the equivalent levels of templates."""

_BILLING: Final = "x-anthropic-billing-header:"
"""The beginning of a block with Claude Code's version, which is dropped: it changes, so the prompt's prefix would
not be found in the cache."""
_ONLY: Final = "the target reads only text and tool calls"


def parse_message(body: Body) -> TextRequest:
    """Read the body of a message. Raises `ApiError`."""
    ignored = FIELDS.check(body)
    _check_context_management(body)
    required(body, "max_tokens")
    tools = _tools(body)
    choice, is_parallel = _choice(body, tools)
    config = nested(body, "output_config", known=("effort", "format"))
    form = _format(body, config)
    if form and choice not in (ToolChoice.AUTO, ToolChoice.NONE):
        message = "output_config.format cannot be combined with a tool_choice that requires a call."
        raise bad_value("output_config.format", message)
    chat = Chat(
        _turns(body).messages,
        tools=list(tools.values()) or None,
        tool_choice=choice,
        calls_in_parallel=is_parallel,
    )
    return text_request(
        body,
        prompts=(chat,),
        asked=form,
        prompt_field="messages",
        otherwise=CHAT_DEFAULTS,
        wishes=_wishes(body, config),
        ignored=ignored,
    )


def _check_context_management(body: Body) -> None:
    """Raise `ApiError` for edits that would shorten a conversation; Claude Code always sends one that keeps all."""
    match body.get("context_management"):
        case None | {"edits": None}:
            return
        case {"edits": list(edits), **others} if not others and all(
            isinstance(edit, dict) and edit.get("type") == "clear_thinking_20251015" and edit.get("keep") == "all"
            for edit in edits
        ):
            return
    raise unsupported("context_management")


def _wishes(body: Body, config: Body) -> Json:
    """Read the wishes for the template. Clients send them to any model, so it need not support them."""
    wishes: Json = {}
    match body.get("thinking"):
        case None | {"type": "adaptive"}:
            pass
        case {"type": "enabled" | "disabled" as kind}:
            # The names in most templates, and in DeepSeek's and Granite's.
            wishes = dict.fromkeys(("enable_thinking", "thinking"), kind == "enabled")
        case _:
            raise bad_value("thinking", "thinking must be of type enabled, adaptive or disabled.")
    effort = config.get("effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in EFFORTS:
            raise bad_value("output_config.effort", f"output_config.effort must be one of {', '.join(EFFORTS)}.")
        wishes["reasoning_effort"] = EFFORTS[effort]
    return wishes


def _format(body: Body, config: Body) -> Json:
    """Read the constraint of the text; `output_format` is its older name."""
    inner = config.get("format")
    name, value = ("output_format", body.get("output_format")) if inner is None else ("output_config.format", inner)
    match value:
        case None:
            return {}
        case {"type": "json_schema", "schema": wanted}:
            return schema(wanted, f"{name}.schema")
    raise bad_value(name, f"{name} must be of type json_schema, with a schema.")


def _tools(body: Body) -> dict[str, Json]:
    """Read the tools by name, as functions of a chat."""
    found: dict[str, Json] = {}
    for index, tool in enumerate(objects(body.get("tools") or [], "tools")):
        path = f"tools[{index}]"
        if tool.get("type") not in (None, "custom"):
            reason = "the gateway runs no tools, and the target knows only those that are defined"
            raise wrong_type(tool, path, reason)
        name = text_field(tool, "name", path)
        schema_path = f"{path}.input_schema"
        parameters = schema_object(required(tool, "input_schema", path=schema_path), schema_path)
        if not name or name in found:
            raise bad_value(f"{path}.name", f"{path}.name must not be empty, or that of another tool.")
        told = [] if (description := stated_text(tool, "description", path)) is None else [description]
        if tool.get("input_examples"):
            examples = unicode_throughout(tool["input_examples"], f"{path}.input_examples")
            told.append(f"Examples of input: {json.dumps(examples, ensure_ascii=False)}")
        function = {"name": name, "description": "\n\n".join(told)} if told else {"name": name}
        found[name] = {"type": "function", "function": {**function, "parameters": parameters}}
    return found


def _choice(body: Body, tools: Mapping[str, Json]) -> tuple[ToolChoice | NamedTool, bool]:
    """Read the tool choice, and whether calls may be parallel."""
    choice = body.get("tool_choice") or {"type": "auto"}
    if not isinstance(choice, dict):
        raise bad_value("tool_choice", "tool_choice must be an object.")
    is_parallel = not flag(choice, "disable_parallel_tool_use")
    match choice:
        case {"type": "auto"}:
            return ToolChoice.AUTO, is_parallel
        case {"type": "none"}:
            return ToolChoice.NONE, is_parallel
        case {"type": "any"}:
            return ToolChoice.REQUIRED, is_parallel
        case {"type": "tool", "name": str(name)}:
            if name not in tools:
                raise bad_value("tool_choice", "tool_choice names a tool that is not among tools.")
            return NamedTool(name), is_parallel
    raise bad_value("tool_choice", "tool_choice must be of type auto, any, tool with its name, or none.")


def _turns(body: Body) -> ConversationTurns:
    """Read the turns of the system prompt and of all messages."""
    turns = ConversationTurns()
    for words in _texts(body.get("system"), "system"):
        if not words.startswith(_BILLING):
            turns.instruct(words)
    for index, message in enumerate(conversation(required(body, "messages"), "messages")):
        path = f"messages[{index}]"
        role = message.get("role")
        content = required(message, "content", path=f"{path}.content")
        if role == "system":
            for words in _texts(content, f"{path}.content"):
                turns.instruct(words)
        elif role in ("user", "assistant"):
            for block, block_path in _blocks(content, f"{path}.content"):
                _add(turns, role, block, block_path)
        else:
            raise bad_value(f"{path}.role", f"{path}.role must be user, assistant or system.")
    return turns


def _blocks(content: Any, path: str) -> Iterator[tuple[Json, str]]:
    """Yield the blocks of a content with their paths; a string is one block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, path
        return
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise bad_value(path, f"{path} must be a text, or a list of blocks.")
    for index, block in enumerate(content):
        yield block, f"{path}[{index}]"


def _texts(content: Any, path: str) -> Iterator[str]:
    """Yield the texts of a content of only text blocks."""
    for block, block_path in _blocks([] if content is None else content, path):
        if block.get("type") != "text":
            raise wrong_type(block, block_path, _ONLY)
        yield text_field(block, "text", block_path)


def _add(turns: ConversationTurns, role: str, block: Json, path: str) -> None:
    match role, block.get("type"):
        case _, "text":
            turns.say(role, text_field(block, "text", path))
        case "assistant", "thinking":
            if thought := stated_text(block, "thinking", path):
                turns.reason(thought)
        case "assistant", "redacted_thinking":
            # Only the server that encrypted it can read it.
            pass
        case "assistant", "tool_use":
            arguments = unicode_throughout(block.get("input") or {}, f"{path}.input")
            call_id, name = text_field(block, "id", path), text_field(block, "name", path)
            turns.call(call_id, name, json.dumps(arguments, ensure_ascii=False))
        case "user", "tool_result":
            said = BETWEEN.join(_texts(block.get("content"), f"{path}.content"))
            # Templates have no field for errors.
            answer = f"Error: {said}" if flag(block, "is_error") else said
            turns.answer(text_field(block, "tool_use_id", path), answer)
        case _:
            raise wrong_type(block, path, _ONLY)
