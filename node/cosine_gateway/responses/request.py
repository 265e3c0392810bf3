"""Requests for responses: their fields and the items of their input."""

from collections.abc import Callable, Mapping
from typing import Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import (
    Body,
    Json,
    conversation,
    flag,
    nested,
    objects,
    required,
    stated_text,
    text,
    text_field,
    whole_field,
    wrong_type,
)
from cosine_gateway.chats import read_content
from cosine_gateway.constraints import ANY_OBJECT, CONSTRAINTS, schema
from cosine_gateway.fields import HARMLESS, REFUSED, RequestFields, refused
from cosine_gateway.responses.items import kept_text
from cosine_gateway.responses.tools import Tool, Tools, custom_arguments
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import COMMON_FIELDS, TextRequest, text_request
from cosine_gateway.turns import ConversationTurns
from cosine_p2p.request.chat import Chat, ToolChoice
from cosine_p2p.request.options import GenerationOptions
from cosine_protocol.request import MAX_TOP_LOGPROBS

# Agents send no length and write whole files; this is enough for some hundred lines.
DEFAULTS: Final[GenerationOptions] = {**CHAT_DEFAULTS, "max_new_tokens": 8192}

LOGPROBS: Final = "message.output_text.logprobs"
KEPT_REASONING: Final = "reasoning.encrypted_content"
_NOTHING_STORED: Final = "the gateway stores nothing; send the whole conversation as input"
FIELDS: Final = RequestFields(
    honoured=COMMON_FIELDS
    - {*CONSTRAINTS, "max_completion_tokens", "max_tokens", "n", "stop_sequences"}
    | {
        "include", "input", "instructions", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools",
        "top_logprobs",
    },
    harmless=HARMLESS | {
        # For images and for tools that a server runs, which do not exist here.
        "image", "max_tool_calls",
        # For moderation, which does not exist here.
        "access_programs",
        # A prompt that is too long is refused with an error.
        "truncation",
    },
    refused={
        **REFUSED,
        **refused(_NOTHING_STORED, background=(False,), conversation=(), previous_response_id=("",), prompt=()),
        **refused("a conversation is used unchanged; shorten it yourself", context_management=([],)),
        **refused("its name here is input", messages=()),
        **refused("its name here is max_output_tokens", max_tokens=(), max_completion_tokens=()),
        **refused("a response is one text; send several requests", n=(1,)),
        **refused("its name here is text.format", response_format=()),
        **refused("its name here is reasoning.effort", reasoning_effort=()),
    },
)  # fmt: skip


def parse_response(body: Body) -> TextRequest:
    """Read the body of a response. Raises `ApiError`."""
    ignored = FIELDS.check(body)
    choice, usable = Tools.read(body).chosen(body)
    form = _format(body)
    if form and choice not in (ToolChoice.AUTO, ToolChoice.NONE):
        raise bad_value("text.format", "text.format cannot be combined with a tool_choice that requires a call.")
    chat = Chat(
        _turns(body).messages,
        tools=list(usable) or None,
        tool_choice=choice,
        calls_in_parallel=flag(body, "parallel_tool_calls") is not False,
        template_options=_effort(body),
    )
    return text_request(
        body,
        prompts=(chat,),
        asked={**form, **_logprobs(body)},
        prompt_field="input",
        otherwise=DEFAULTS,
        ignored=ignored,
        template_fields={"reasoning_effort": "reasoning.effort"},
    )


def _logprobs(body: Body) -> Json:
    """Read the option for log-probabilities; other `include` values concern tools that do not exist here."""
    included = body.get("include") or []
    if not isinstance(included, list) or not all(isinstance(each, str) for each in included):
        raise bad_value("include", "include must be a list of names.")
    top = whole_field(body, "top_logprobs", 0, low=0, high=MAX_TOP_LOGPROBS)
    return {"logprobs": top} if top or LOGPROBS in included else {}


def _effort(body: Body) -> Json:
    """Read the template options for the effort of reasoning."""
    reasoning = nested(body, "reasoning", known=("context", "effort", "generate_summary", "mode", "summary"))
    # The template gets all reasoning that was sent.
    for name, done_anyway in (("context", ("auto", "all_turns")), ("mode", ("standard",))):
        if reasoning.get(name) not in (None, *done_anyway):
            raise unsupported(f"reasoning.{name}")
    effort = stated_text(reasoning, "effort", "reasoning")
    if effort is None:
        return {}
    # Templates without levels of effort have a switch.
    switch = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **switch}


def _format(body: Body) -> Json:
    """Read the constraint of the text."""
    asked = nested(body, "text", known=("format", "verbosity"))
    if asked.get("verbosity") not in (None, "medium"):
        raise unsupported("text.verbosity", "text.verbosity is not supported here: use the prompt.")
    match asked.get("format"):
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return schema(ANY_OBJECT, "text.format")
        case {"type": "json_schema", "schema": wanted}:
            return schema(wanted, "text.format.schema")
    raise bad_value("text.format", "text.format must be of type text, json_object, or json_schema with a schema.")


def _turns(body: Body) -> ConversationTurns:
    """Read the turns of the instructions and the input."""
    turns = ConversationTurns()
    if (instructions := stated_text(body, "instructions")) is not None:
        turns.instruct(instructions)
    given = required(body, "input")
    if isinstance(given, str):
        turns.say("user", text(given, "input"))
        return turns
    for index, item in enumerate(conversation(given, "input")):
        path, kind = f"input[{index}]", item.get("type") or "message"
        read = _ITEMS.get(kind) if isinstance(kind, str) else None
        if read is None:
            reason = _NOTHING_STORED if kind == "item_reference" else "it is not supported here"
            raise wrong_type(item, path, reason)
        read(item, path, turns)
    return turns


def _message(item: Body, path: str, turns: ConversationTurns) -> None:
    said = read_content(required(item, "content", path=f"{path}.content"), f"{path}.content")
    match item.get("role"):
        case "user" | "assistant" as role:
            turns.say(role, said)
        case "system" | "developer":
            turns.instruct(said)
        case _:
            raise bad_value(f"{path}.role", f"{path}.role must be user, assistant, system or developer.")


def _reasoning(item: Body, path: str, turns: ConversationTurns) -> None:
    """Read reasoning or else its summary; text that another server encrypted is dropped."""
    for name in ("content", "summary"):
        parts = objects(item.get(name) or [], f"{path}.{name}")
        for index, part in enumerate(parts):
            turns.reason(text_field(part, "text", f"{path}.{name}[{index}]"))
        if parts:
            return
    held = kept_text(stated_text(item, "encrypted_content", path) or "")
    if held is not None:
        turns.reason(held)


def _call(item: Body, path: str, turns: ConversationTurns) -> None:
    arguments = stated_text(item, "arguments", path) or "{}"
    turns.call(text_field(item, "call_id", path), _called(item, path), arguments)


def _custom_call(item: Body, path: str, turns: ConversationTurns) -> None:
    arguments = custom_arguments(stated_text(item, "input", path) or "")
    turns.call(text_field(item, "call_id", path), _called(item, path), arguments)


def _output(item: Body, path: str, turns: ConversationTurns) -> None:
    turns.answer(text_field(item, "call_id", path), read_content(item.get("output"), f"{path}.output"))


def _called(item: Body, path: str) -> str:
    """Return the flat name of a called tool, which may no longer be among the tools."""
    return Tool(text_field(item, "name", path), stated_text(item, "namespace", path)).flat_name


_ITEMS: Final[Mapping[str, Callable[[Body, str, ConversationTurns], None]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}
"""The readers of the items of a conversation."""
