"""Tool definitions as text, for chat templates without tool support. Pure."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

Message = Mapping[str, Any]

# The text of Hermes and Qwen2.5, the most common one in training data.
_TOLD: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{definitions}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML \
tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tools_in_words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return variants of a chat with tools described by the system, or by the user's first message."""
    turns = [turn for role, run in groupby(messages, key=lambda each: each["role"]) for turn in _turns(role, run)]
    if not tools:
        return [turns]
    words = _TOLD.format(definitions="\n".join(json.dumps(tool, ensure_ascii=False, default=str) for tool in tools))
    first = turns[0]
    if first["role"] == "system":
        by_system = [first | {"content": f"{first['content']}\n\n{words}"}, *turns[1:]]
        words = by_system[0]["content"]
        turns = turns[1:]
    else:
        by_system = [{"role": "system", "content": words}, *turns]
    asked = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), None)
    if asked is None:
        return [by_system]
    by_user = turns[asked] | {"content": f"{words}\n\n{turns[asked]['content']}"}
    return [by_system, [*turns[:asked], by_user, *turns[asked + 1 :]]]


def _turns(role: str, messages: Any) -> list[dict[str, Any]]:
    if role == "tool":
        results = "\n".join(f"<tool_response>\n{each['content']}\n</tool_response>" for each in messages)
        return [{"role": "user", "content": results}]
    return [_with_calls(each) for each in messages]


def _with_calls(message: Message) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = message.get("tool_calls")
    written = [_call(call) for call in calls] if isinstance(calls, list | tuple) else []
    said = [message["content"]] if message["content"] else []
    return fields | {"content": "\n".join([*said, *written])}


def _call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, default=str)
    return f"<tool_call>\n{written}\n</tool_call>"
