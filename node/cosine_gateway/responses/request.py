"""Parses the bodies of responses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import Body, ascii_name, nested, objects, required, stated_flag, text, whole
from cosine_gateway.constraints import ANY_OBJECT, CONSTRAINTS, schema
from cosine_gateway.fields import HARMLESS, HONOURED, REFUSED, Refusal, refuse_others, refused
from cosine_gateway.responses.items import kept_text
from cosine_gateway.responses.tools import Tool, Tools, custom_arguments
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import TextRequest, read_content, text_request
from cosine_gateway.tokens import chat_tokens
from cosine_gateway.turns import ConversationTurns
from cosine_p2p.request.chat import Chat, ToolChoice
from cosine_p2p.request.options import GenerationOptions
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.request import MAX_TOP_LOGPROBS

Json = dict[str, Any]

# Agents send no length and write whole files; this is enough for some hundred lines.
DEFAULTS: Final[GenerationOptions] = {**CHAT_DEFAULTS, "max_new_tokens": 8192}

HONOURED_IN_RESPONSES: Final = (HONOURED - CONSTRAINTS - {"max_completion_tokens", "max_tokens", "n"}) | {
    "include", "input", "instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "text",
    "tool_choice", "tools", "top_logprobs",
}  # fmt: skip
HARMLESS_IN_RESPONSES: Final = (HARMLESS - HONOURED_IN_RESPONSES) | {
    # For images and for tools that a server runs, which do not exist here.
    "image", "max_tool_calls",
    # For moderation, which does not exist here.
    "access_programs",
    # A prompt that is too long is refused with an error.
    "truncation",
}  # fmt: skip
LOGPROBS: Final = "message.output_text.logprobs"
KEPT_REASONING: Final = "reasoning.encrypted_content"
_NOTHING_STORED: Final = "the gateway stores nothing; send the whole conversation as input"
REFUSED_IN_RESPONSES: Final[Mapping[str, Refusal]] = {
    **{name: why for name, why in REFUSED.items() if name not in HONOURED_IN_RESPONSES},
    **refused(_NOTHING_STORED, background=(False,), conversation=(), previous_response_id=("",), prompt=()),
    **refused("a conversation is used unchanged; shorten it yourself", context_management=([],)),
    **refused("its name here is input", messages=()),
    **refused("its name here is max_output_tokens", max_tokens=(), max_completion_tokens=()),
    **refused("a response is one text; send several requests", n=(1,)),
    **refused("its name here is text.format", response_format=()),
    **refused("its name here is reasoning.effort", reasoning_effort=()),
}


def parse_response(body: Body) -> TextRequest:
    """Parse the body of `/v1/responses`. Raises `ApiError`."""
    ignored = refuse_others(
        body, HONOURED_IN_RESPONSES, harmless=HARMLESS_IN_RESPONSES, refusals=REFUSED_IN_RESPONSES
    )
    tools = Tools.read(body)
    choice, usable = tools.chosen(body)
    effort, form = _effort(body), _format(body)
    if form and choice not in (ToolChoice.AUTO, ToolChoice.NONE):
        raise bad_value("text.format", "text.format cannot be combined with a tool_choice that requires a call.")
    chat = Chat(
        _turns(body).messages,
        tools=list(usable) or None,
        tool_choice=choice,
        calls_in_parallel=stated_flag(body, "parallel_tool_calls") is not False,
        template_options=effort,
    )
    request = text_request(body, prompt_field="input", prompts=(chat,), least_tokens=1, otherwise=DEFAULTS)
    return replace(
        request,
        asked={**request.asked, **form, **_logprobs(body)},
        ignored=ignored,
        template_fields={"reasoning_effort": "reasoning.effort"},
    )


def input_tokens(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/v1/responses/input_tokens`: the tokens of a prompt with its tools. Raises `ApiError`."""
    wanted = parse_response(body)
    (chat,) = wanted.prompts
    assert isinstance(chat, Chat)
    tokens = chat_tokens(chat, codec, wishes=wanted.wishes, fields=wanted.template_fields)
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _logprobs(body: Body) -> dict[str, Any]:
    """Read the option for log-probabilities; other `include` values concern tools that do not exist here."""
    included = body.get("include") or []
    if not isinstance(included, list) or not all(isinstance(each, str) for each in included):
        raise bad_value("include", "include must be a list of names.")
    top = whole(body, "top_logprobs", 0, low=0, high=MAX_TOP_LOGPROBS)
    return {"logprobs": top} if top or LOGPROBS in included else {}


def _effort(body: Body) -> dict[str, Any]:
    """Read the template options for the effort of reasoning."""
    reasoning = nested(body, "reasoning")
    for name, value in reasoning.items():
        # The template gets all reasoning that was sent.
        is_done_anyway = (name, value) in (("context", "auto"), ("context", "all_turns"), ("mode", "standard"))
        if value is not None and name not in ("effort", "summary", "generate_summary") and not is_done_anyway:
            raise unsupported(f"reasoning.{ascii_name(name)}")
    effort = reasoning.get("effort")
    if effort is None:
        return {}
    effort = text(effort, "reasoning.effort")
    # Templates without levels of effort have a switch.
    switch = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **switch}


def _format(body: Body) -> dict[str, Any]:
    """Read the constraint of the text."""
    asked = nested(body, "text")
    for name, value in asked.items():
        if name not in ("format", "verbosity"):
            raise unsupported(f"text.{ascii_name(name)}")
        if name == "verbosity" and value not in (None, "medium"):
            raise unsupported("text.verbosity", "text.verbosity is not supported here: use the prompt.")
    match asked.get("format"):
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return dict([schema(ANY_OBJECT, "text.format")])
        case {"type": "json_schema", "schema": wanted}:
            return dict([schema(wanted, "text.format.schema")])
    raise bad_value("text.format", "text.format must be of type text, json_object, or json_schema with a schema.")


def _turns(body: Body) -> ConversationTurns:
    """Read the turns of the instructions and the input."""
    turns = ConversationTurns()
    if body.get("instructions") is not None:
        turns.instruct(text(body["instructions"], "instructions"))
    given = required(body, "input")
    if isinstance(given, str):
        turns.say("user", text(given, "input"))
        return turns
    if not isinstance(given, list) or not given:
        raise bad_value("input", "input must be a text, or a list of at least one item.")
    for index, item in enumerate(given):
        path = f"input[{index}]"
        if not isinstance(item, dict):
            raise bad_value(path, f"{path} must be an object.")
        kind = item.get("type") or "message"
        read = _ITEMS.get(kind) if isinstance(kind, str) else None
        if kind == "item_reference":
            raise unsupported(f"{path}.type", f"{path} is a reference: {_NOTHING_STORED}, with store false.")
        if read is None:
            shown = ascii_name(kind) if isinstance(kind, str) else "that"
            raise unsupported(f"{path}.type", f"{path} is of type {shown}, which is not supported here.")
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
            turns.reason(text(part.get("text"), f"{path}.{name}[{index}].text"))
        if parts:
            return
    held = kept_text(text(item.get("encrypted_content") or "", f"{path}.encrypted_content"))
    if held is not None:
        turns.reason(held)


def _call(item: Body, path: str, turns: ConversationTurns) -> None:
    arguments = text(item.get("arguments") or "{}", f"{path}.arguments")
    turns.call(_call_id(item, path), _called(item, path), arguments)


def _custom_call(item: Body, path: str, turns: ConversationTurns) -> None:
    said = text(item.get("input") or "", f"{path}.input")
    turns.call(_call_id(item, path), _called(item, path), custom_arguments(said))


def _output(item: Body, path: str, turns: ConversationTurns) -> None:
    turns.answer(_call_id(item, path), read_content(item.get("output"), f"{path}.output"))


def _call_id(item: Body, path: str) -> str:
    return text(required(item, "call_id", path=f"{path}.call_id"), f"{path}.call_id")


def _called(item: Body, path: str) -> str:
    """Return the flat name of a called tool, which may no longer be among the tools."""
    name = text(required(item, "name", path=f"{path}.name"), f"{path}.name")
    namespace = item.get("namespace")
    return Tool(name, None if namespace is None else text(namespace, f"{path}.namespace")).flat_name


_ITEMS: Final[Mapping[str, Callable[[Body, str, ConversationTurns], None]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}
"""The readers of the items of a conversation."""
