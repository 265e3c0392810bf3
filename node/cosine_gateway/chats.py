"""OpenAI's `/v1/chat/completions`: replies of the assistant to conversations."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import (
    Body,
    Json,
    ascii_name,
    conversation,
    flag,
    objects,
    required,
    schema_object,
    stated_text,
    text,
    text_field,
    unicode_throughout,
    wrong_type,
)
from cosine_gateway.choices_reply import ChoicesReply
from cosine_gateway.fields import RequestFields
from cosine_gateway.logprobs import ChatLogprobs, read_chat_logprobs
from cosine_gateway.reply import Api
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_gateway.text_request import COMMON_FIELDS, TextRequest, text_request
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reasoning, Reply
from cosine_p2p.request.chat import RESERVED, Chat, Message, NamedTool, ToolChoice
from cosine_p2p.text.chat_template import REASONING
from cosine_p2p.text.prompt import TEXT_PARTS

CHAT_FIELDS: Final = frozenset({
    "add_generation_prompt", "chat_template_kwargs", "continue_final_message", "documents", "messages", "model",
    "parallel_tool_calls", "reasoning_effort", "tool_choice", "tools",
})  # fmt: skip
"""The fields that `read_chat` reads, and the model."""
FIELDS: Final = RequestFields(
    honoured=COMMON_FIELDS - {"max_output_tokens", "stop_sequences"}
    | CHAT_FIELDS
    | {"logprobs", "provenance", "top_logprobs"}
)
TEMPLATE_FIELDS: Final = {"documents": "documents", "reasoning_effort": "reasoning_effort"}
"""The template options that have their own field in a chat's body."""
MAX_TOOLS: Final = 128
"""The limit of OpenAI's API."""

Tools = Sequence[Json]


def parse_chat(body: Body) -> TextRequest:
    """Read the body of a chat. Raises `ApiError`."""
    ignored = FIELDS.check(body)
    return text_request(
        body,
        prompts=(read_chat(body),),
        asked=read_chat_logprobs(body),
        prompt_field="messages",
        otherwise=CHAT_DEFAULTS,
        tells_provenance=bool(flag(body, "provenance")),
        ignored=ignored,
        template_fields=TEMPLATE_FIELDS,
    )


def read_chat(body: Body) -> Chat:
    """Read the conversation of a body with its template options, by vLLM's names. Raises `ApiError`."""
    given = conversation(required(body, "messages"), "messages")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    begins, continues = (flag(body, name) for name in ("add_generation_prompt", "continue_final_message"))
    if begins and continues:
        raise bad_value(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other; set one.",
        )
    options = body.get("chat_template_kwargs")
    if not isinstance(options, dict | None) or not RESERVED.isdisjoint(options or {}):
        taken = ", ".join(sorted(RESERVED))
        raise bad_value("chat_template_kwargs", f"chat_template_kwargs must be an object without {taken}.")
    if (effort := stated_text(body, "reasoning_effort")) is not None:
        options = {"reasoning_effort": effort, **(options or {})}
    documents = body.get("documents")
    if documents is not None:
        objects(documents, "documents")
    tool_choice, tools = _tool_choice(body.get("tool_choice"), _tools(body))
    return Chat(
        messages,
        tools=tools,
        tool_choice=tool_choice,
        calls_in_parallel=flag(body, "parallel_tool_calls") is not False,
        documents=unicode_throughout(documents, "documents"),
        add_generation_prompt=begins is not False,
        continue_final_message=False if begins else continues,
        template_options=unicode_throughout(options or {}, "chat_template_kwargs"),
    )


def _message(message: Body, path: str) -> Message:
    """Read the message fields that templates read; roles are left to the target's template."""
    for known in ("function_call", "audio"):
        if message.get(known):
            raise unsupported(f"{path}.{known}")
    role = text_field(message, "role", path)
    if role != "assistant" and "content" not in message:
        raise bad_value(f"{path}.content", f"{path}.content is required.")
    fields: Json = {"role": role, "content": read_content(message.get("content"), f"{path}.content")}
    for known in ("name", "tool_call_id", *REASONING):
        if (value := stated_text(message, known, path)) is not None:
            fields[known] = value
    calls = objects(message.get("tool_calls") or [], f"{path}.tool_calls")
    return fields | ({"tool_calls": unicode_throughout(calls, f"{path}.tool_calls")} if calls else {})


def read_content(content: Any, path: str) -> str:
    """Read the text of a content; text parts are joined by line breaks, as in vLLM."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return text(content, path)
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return text(part, path)
    if not isinstance(part, dict):
        raise bad_value(path, f"{path} must be an object with type and text.")
    kind = part.get("type")
    name = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if name is None:
        raise wrong_type(part, path, "the target reads only text")
    return text_field(part, name, path)


def _tools(body: Body) -> Tools | None:
    """Read the functions, None if there are none."""
    tools = body.get("tools")
    if not tools:
        return None
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise bad_value("tools", f"tools must be a list of at most {MAX_TOOLS} functions.")
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("type", "function"), str):
            raise bad_value(path, f"{path} must be an object of type function.")
        if tool.get("type", "function") != "function":
            raise wrong_type(tool, path, "a target calls only functions")
        function = tool.get("function")
        if not isinstance(function, dict) or not text(function.get("name"), f"{path}.function.name"):
            raise bad_value(f"{path}.function", f"{path}.function must be an object with a name.")
        if function.get("parameters") is not None:
            schema_object(function["parameters"], f"{path}.function.parameters")
    found: Tools = unicode_throughout(tools, "tools")
    return found


def _tool_choice(choice: Any, tools: Tools | None) -> tuple[ToolChoice | NamedTool, Tools | None]:
    """Read the choice, and return the tools that it allows."""
    match choice:
        case None:
            return ToolChoice.AUTO, tools
        case "none" | "auto" | "required":
            if choice == "required" and not tools:
                raise bad_value("tool_choice", "tool_choice required needs tools to choose from.")
            return ToolChoice(choice), tools
        case {"type": "function", "function": {"name": str()}}:
            return NamedTool(_known(choice, tools)), tools
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)},
        }:
            names = {_known(each, tools) for each in allowed}
            return ToolChoice(mode), [each for each in tools or () if each["function"]["name"] in names]
    raise bad_value("tool_choice", "tool_choice must be none, auto, required, a function, or allowed_tools.")


def _known(choice: Any, tools: Tools | None) -> str:
    """Return the name of the function that a choice names."""
    match choice:
        case {"function": {"name": str(name)}}:
            if name in {each["function"]["name"] for each in tools or ()}:
                return name
            raise bad_value("tool_choice", f"tool_choice names {ascii_name(name)}, which is not one of the tools.")
    raise bad_value("tool_choice", "The tools of tool_choice must be functions with a name.")


class ChatReply(ChoicesReply):
    """Messages of the assistant, whole or streamed."""

    id_prefix = "chatcmpl-"
    whole_kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    shape = ChatLogprobs

    def _opening(self, index: int) -> Iterator[Json]:
        yield self._piece([self._told(index, {"delta": {"role": "assistant", "content": ""}})])

    def _whole_of(self, parts: list[Part]) -> Json:
        reply = Reply.of(parts)
        calls = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
        message = {"role": "assistant", "content": None if calls and not reply.content else reply.content}
        message |= {"refusal": None, **_reasoning(reply.reasoning)}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _piece_of(self, part: Part | None) -> Json:
        """A call begins with its name; its arguments follow under its index."""
        match part:
            case Content(said):
                return {"delta": {"content": said}}
            case Reasoning(said):
                return {"delta": _reasoning(said)}
            case CallBegun(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return {"delta": {"tool_calls": [call]}}
            case CallArguments(index, said):
                return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": said}}]}}
        return {"delta": {}}


def _reasoning(said: str) -> Json:
    """Reasoning under both names that clients read: DeepSeek's, and that of vLLM and OpenRouter."""
    return {"reasoning_content": said, "reasoning": said} if said else {}


CHATS: Final = Api("/chat/completions", parse_chat, ChatReply)
