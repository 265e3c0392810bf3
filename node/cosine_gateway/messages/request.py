"""Parses the bodies of messages."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cosine_gateway.api_errors import ApiError, bad_value, unsupported
from cosine_gateway.body import (
    Body,
    ascii_name,
    nested,
    objects,
    required,
    stated_flag,
    text,
    unicode_throughout,
)
from cosine_gateway.constraints import CONSTRAINTS, schema
from cosine_gateway.fields import HARMLESS, HONOURED, NOTHING, REFUSED, Refusal, refuse_others, refused
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import TextRequest, text_request
from cosine_gateway.tokens import chat_tokens
from cosine_gateway.turns import BETWEEN, ConversationTurns
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.text.tokenizer import TextTokenizer

Json = dict[str, Any]

_OF_OPENAI: Final = frozenset({"max_completion_tokens", "n", "stop", "stream_options"})
HONOURED_IN_MESSAGES: Final = (HONOURED - CONSTRAINTS - _OF_OPENAI) | {
    "context_management", "messages", "output_config", "output_format", "stop_sequences", "system", "thinking",
    "tool_choice", "tools",
}  # fmt: skip
HARMLESS_IN_MESSAGES: Final = HARMLESS | {
    "billing_policy", "diagnostics", "fallback_credit_token", "speed", "user_profile_id", "workspace_id",
}  # fmt: skip
REFUSED_IN_MESSAGES: Final[Mapping[str, Refusal]] = {
    **{name: why for name, why in REFUSED.items() if name not in HONOURED_IN_MESSAGES},
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
}

EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's levels of effort, and the equivalent levels of templates."""

_BILLING: Final = "x-anthropic-billing-header:"
"""The beginning of a block with Claude Code's version, which is dropped: it changes, so the prompt's prefix would
not be found in the cache."""


def parse_message(body: Body) -> TextRequest:
    """Parse the body of `/v1/messages`. Raises `ApiError`."""
    chat, wishes, ignored = _read(body)
    required(body, "max_tokens")
    form = _format(body)
    if form and chat.tool_choice not in (ToolChoice.AUTO, ToolChoice.NONE):
        message = "output_config.format cannot be combined with a tool_choice that requires a call."
        raise bad_value("output_config.format", message)
    request = text_request(body, prompt_field="messages", prompts=(chat,), least_tokens=1, otherwise=CHAT_DEFAULTS)
    return replace(request, asked={**request.asked, **form}, wishes=wishes, ignored=ignored)


def counted(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/v1/messages/count_tokens`: the tokens of a prompt with its tools. Raises `ApiError`."""
    chat, wishes, _ = _read(body)
    return {"input_tokens": chat_tokens(chat, codec, wishes=wishes, fields={})}


def shows_thinking(body: Body) -> bool:
    """Return False if a body asks to omit the text of the thinking."""
    return not isinstance(body.get("thinking"), dict) or body["thinking"].get("display") != "omitted"


def _read(body: Body) -> tuple[Chat, Json, tuple[str, ...]]:
    """Read the chat of a body, the wishes for its template, and ignored fields. Raises `ApiError`."""
    ignored = refuse_others(body, HONOURED_IN_MESSAGES, harmless=HARMLESS_IN_MESSAGES, refusals=REFUSED_IN_MESSAGES)
    _check_context_management(body)
    tools = _tools(body)
    choice, is_parallel = _choice(body, tools)
    chat = Chat(
        _turns(body).messages,
        tools=list(tools.values()) or None,
        tool_choice=choice,
        calls_in_parallel=is_parallel,
    )
    return chat, _wishes(body), ignored


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


def _wishes(body: Body) -> Json:
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
    effort = _output_config(body).get("effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in EFFORTS:
            raise bad_value("output_config.effort", f"output_config.effort must be one of {', '.join(EFFORTS)}.")
        wishes["reasoning_effort"] = EFFORTS[effort]
    return wishes


def _output_config(body: Body) -> Json:
    config = nested(body, "output_config")
    for name, value in config.items():
        if name not in ("effort", "format") and value is not None:
            raise unsupported(f"output_config.{ascii_name(name)}")
    return config


def _format(body: Body) -> Json:
    """Read the constraint of the text; `output_format` is its older name."""
    inner = _output_config(body).get("format")
    name, value = ("output_format", body.get("output_format")) if inner is None else ("output_config.format", inner)
    match value:
        case None:
            return {}
        case {"type": "json_schema", "schema": wanted}:
            return dict([schema(wanted, f"{name}.schema")])
    raise bad_value(name, f"{name} must be of type json_schema, with a schema.")


def _tools(body: Body) -> dict[str, Json]:
    """Read the tools by name, as functions of a chat."""
    found: dict[str, Json] = {}
    for index, tool in enumerate(objects(body.get("tools") or [], "tools")):
        path = f"tools[{index}]"
        if tool.get("type") not in (None, "custom"):
            reason = "the gateway runs no tools, and the target knows only those that are defined"
            raise unsupported(f"{path}.type", f"{path} is of type {_shown(tool['type'])}: {reason}.")
        name = text(required(tool, "name", path=f"{path}.name"), f"{path}.name")
        parameters = required(tool, "input_schema", path=f"{path}.input_schema")
        if not isinstance(parameters, dict):
            raise bad_value(f"{path}.input_schema", f"{path}.input_schema must be a JSON schema: an object.")
        if not name or name in found:
            raise bad_value(f"{path}.name", f"{path}.name must not be empty, or that of another tool.")
        told = [] if tool.get("description") is None else [text(tool["description"], f"{path}.description")]
        if tool.get("input_examples"):
            examples = unicode_throughout(tool["input_examples"], f"{path}.input_examples")
            told.append(f"Examples of input: {json.dumps(examples, ensure_ascii=False)}")
        function = {"name": name, "description": "\n\n".join(told)} if told else {"name": name}
        parameters = unicode_throughout(parameters, f"{path}.input_schema")
        found[name] = {"type": "function", "function": {**function, "parameters": parameters}}
    return found


def _choice(body: Body, tools: Mapping[str, Json]) -> tuple[ToolChoice | NamedTool, bool]:
    """Read the tool choice, and whether calls may be parallel."""
    choice = body.get("tool_choice") or {"type": "auto"}
    if not isinstance(choice, dict):
        raise bad_value("tool_choice", "tool_choice must be an object.")
    is_parallel = not stated_flag(choice, "disable_parallel_tool_use")
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
    given = required(body, "messages")
    if not isinstance(given, list) or not given:
        raise bad_value("messages", "messages must be a list of at least one message.")
    for index, message in enumerate(given):
        path = f"messages[{index}]"
        if not isinstance(message, dict):
            raise bad_value(path, f"{path} must be an object with role and content.")
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
            raise _no_such_block(block, block_path)
        yield text(block.get("text"), f"{block_path}.text")


def _add(turns: ConversationTurns, role: str, block: Json, path: str) -> None:
    match role, block.get("type"):
        case _, "text":
            turns.say(role, text(block.get("text"), f"{path}.text"))
        case "assistant", "thinking":
            if thought := text(block.get("thinking") or "", f"{path}.thinking"):
                turns.reason(thought)
        case "assistant", "redacted_thinking":
            # Only the server that encrypted it can read it.
            pass
        case "assistant", "tool_use":
            call_id = text(required(block, "id", path=f"{path}.id"), f"{path}.id")
            name = text(required(block, "name", path=f"{path}.name"), f"{path}.name")
            arguments = unicode_throughout(block.get("input") or {}, f"{path}.input")
            turns.call(call_id, name, json.dumps(arguments, ensure_ascii=False))
        case "user", "tool_result":
            call_id = text(required(block, "tool_use_id", path=f"{path}.tool_use_id"), f"{path}.tool_use_id")
            said = BETWEEN.join(_texts(block.get("content"), f"{path}.content"))
            # Templates have no field for errors.
            turns.answer(call_id, f"Error: {said}" if stated_flag(block, "is_error") else said)
        case _:
            raise _no_such_block(block, path)


def _no_such_block(block: Json, path: str) -> ApiError:
    reason = "the target reads only text and tool calls"
    return unsupported(f"{path}.type", f"{path} is of type {_shown(block.get('type'))}: {reason}.")


def _shown(kind: Any) -> str:
    return ascii_name(kind) if isinstance(kind, str) else "that"
