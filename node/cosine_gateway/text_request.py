"""Requests for text, parsed from the bodies of chats and completions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import (
    Body,
    ascii_name,
    flag,
    is_unicode,
    objects,
    required,
    stated_flag,
    text,
    token_ids,
    unicode_throughout,
    whole,
)
from cosine_gateway.fields import (
    HONOURED_IN_CHATS,
    HONOURED_IN_COMPLETIONS,
    refuse_others,
    refuse_stream_options,
)
from cosine_gateway.logprobs import read_chat_logprobs, read_completion_logprobs
from cosine_gateway.text_options import CHAT_DEFAULTS, COMPLETION_DEFAULTS, NO_BOUND, read_options
from cosine_p2p.request.chat import RESERVED, Chat, Message, NamedTool, ToolChoice
from cosine_p2p.request.options import GenerationOptions, Prompt, choice_seed
from cosine_p2p.text.chat_template import REASONING
from cosine_p2p.text.prompt import TEXT_PARTS
from cosine_protocol.fields import MAX_PROMPT_TOKENS
from cosine_protocol.request import MAX_SEED

MAX_CHOICES: Final = 64
"""Bounds the work of one request: four times a gateway's default number of concurrent generations."""
OWN_FIELDS: Final = {"documents": "documents", "reasoning_effort": "reasoning_effort"}
"""The template options that have their own field in a chat's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChoice:
    """One text to generate: number `index` of the request, number `number` of its prompt."""

    index: int
    number: int
    prompt: Prompt
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A parsed request.

    model: Default: the gateway's own.
    prompt_field: The body's field for the prompt, for errors.
    n: The number of texts for each prompt.
    asked: The generation options in the body. Defaults come from the model's generation config, then `otherwise`.
    seed: Default: random.
    is_echoed: The text begins with the prompt.
    tells_provenance: The reply has the origin of each token and the proof.
    adds_special_tokens: The tokenizer adds its special tokens to prompts.
    cache_salt: Only requests with the same salt share cached prefixes.
    wishes: Options of the chat template that are dropped if it does not read them.
    ignored: Fields of the body that nobody knows and that cannot change the text.
    template_fields: The body's field for each option of the chat template that has its own.
    """

    model: str | None
    prompt_field: str
    prompts: tuple[Prompt, ...]
    n: int
    asked: Mapping[str, Any]
    otherwise: GenerationOptions
    seed: int | None
    is_streamed: bool
    includes_usage: bool
    is_echoed: bool = False
    tells_provenance: bool = False
    adds_special_tokens: bool = True
    cache_salt: str = ""
    wishes: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    template_fields: Mapping[str, str] = field(default_factory=lambda: OWN_FIELDS)

    @property
    def is_generating(self) -> bool:
        """False if no tokens are requested after the prompt."""
        return self.asked.get("max_new_tokens") != 0

    @property
    def is_plain(self) -> bool:
        """True if each choice is only the text after a prompt in the target's usual encoding."""
        return self.is_generating and self.adds_special_tokens and not self.is_echoed

    def choices(self, seed: int) -> tuple[RequestedChoice, ...]:
        """All texts to generate: `n` for each prompt in turn, with the same seeds for each prompt."""
        return tuple(
            RequestedChoice(
                index=row * self.n + number, number=number, prompt=prompt, seed=choice_seed(seed, number)
            )
            for row, prompt in enumerate(self.prompts)
            for number in range(self.n)
        )


Parse = Callable[[Body], TextRequest]


def parse_chat(body: Body) -> TextRequest:
    """Parse the body of `/v1/chat/completions`. Raises `ApiError`."""
    ignored = refuse_others(body, HONOURED_IN_CHATS)
    request = text_request(
        body, prompt_field="messages", prompts=(read_chat(body),), least_tokens=1, otherwise=CHAT_DEFAULTS
    )
    return replace(
        request,
        asked={**request.asked, **read_chat_logprobs(body)},
        tells_provenance=flag(body, "provenance"),
        ignored=ignored,
    )


def parse_completion(body: Body) -> TextRequest:
    """Parse the body of `/v1/completions`. Raises `ApiError`."""
    ignored = refuse_others(body, HONOURED_IN_COMPLETIONS)
    prompts = _prompts(required(body, "prompt"))
    request = text_request(
        body, prompt_field="prompt", prompts=prompts, least_tokens=0, otherwise=COMPLETION_DEFAULTS
    )
    return replace(
        request,
        asked={**request.asked, **read_completion_logprobs(body)},
        is_echoed=flag(body, "echo"),
        ignored=ignored,
        adds_special_tokens=stated_flag(body, "add_special_tokens") is not False,
    )


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """Read one prompt or several, each a text or token ids."""
    several = prompt if isinstance(prompt, list) else [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(each, int | float) for each in prompt):
        several = [prompt]
    if not several or not all(isinstance(each, str | list) for each in several):
        raise bad_value("prompt", "prompt must be text or token ids, or a list of texts or of lists of token ids.")
    if len(several) > MAX_CHOICES:
        raise bad_value("prompt", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    return tuple(
        text(each, "prompt") if isinstance(each, str) else token_ids(each, "prompt", high=MAX_PROMPT_TOKENS)
        for each in several
    )


def text_request(
    body: Body, *, prompt_field: str, prompts: Sequence[Prompt], least_tokens: int, otherwise: GenerationOptions
) -> TextRequest:
    """Parse the fields that bodies of all kinds share. Raises `ApiError`."""
    n = whole(body, "n", 1, low=1, high=MAX_CHOICES)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_value("n", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    seed = whole(body, "seed", NO_BOUND, low=NO_BOUND, high=MAX_SEED)
    is_streamed = flag(body, "stream")
    stream_options = body.get("stream_options")
    if stream_options is not None and not (isinstance(stream_options, dict) and is_streamed):
        raise bad_value("stream_options", "stream_options is an object, and only for stream true.")
    refuse_stream_options(stream_options or {})
    return TextRequest(
        model=None if body.get("model") is None else text(body["model"], "model"),
        prompt_field=prompt_field,
        prompts=tuple(prompts),
        n=n,
        asked=read_options(body, least_tokens=least_tokens),
        otherwise=otherwise,
        seed=None if seed == NO_BOUND else seed,
        is_streamed=is_streamed,
        includes_usage=stream_options is not None and flag(stream_options, "include_usage"),
        cache_salt=text(body.get("cache_salt") or "", "cache_salt"),
    )


def read_chat(body: Body) -> Chat:
    """Read the chat of a body with its template options, by vLLM's names. Raises `ApiError`."""
    given = required(body, "messages")
    if not isinstance(given, list) or not given:
        raise bad_value("messages", "messages must be a list of at least one message.")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    begins, continues = (stated_flag(body, name) for name in ("add_generation_prompt", "continue_final_message"))
    if begins and continues:
        raise bad_value(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other; set one.",
        )
    options = body.get("chat_template_kwargs")
    if not isinstance(options, dict | None) or not RESERVED.isdisjoint(options or {}):
        taken = ", ".join(sorted(RESERVED))
        raise bad_value("chat_template_kwargs", f"chat_template_kwargs must be an object without {taken}.")
    effort = body.get("reasoning_effort")
    if effort is not None:
        options = {"reasoning_effort": text(effort, "reasoning_effort"), **(options or {})}
    documents = body.get("documents")
    if documents is not None:
        objects(documents, "documents")
    tool_choice, tools = read_tool_choice(body, read_tools(body))
    return Chat(
        messages,
        tools=tools,
        tool_choice=tool_choice,
        calls_in_parallel=stated_flag(body, "parallel_tool_calls") is not False,
        documents=unicode_throughout(documents, "documents"),
        add_generation_prompt=begins is not False,
        continue_final_message=False if begins else continues,
        template_options=unicode_throughout(options or {}, "chat_template_kwargs"),
    )


def _message(message: Any, path: str) -> Message:
    """Read the message fields that templates read; roles are left to the target's template."""
    if not isinstance(message, dict):
        raise bad_value(path, f"{path} must be an object with role and content.")
    for known in ("function_call", "audio"):
        if message.get(known):
            raise unsupported(f"{path}.{known}")
    role = text(required(message, "role", path=f"{path}.role"), f"{path}.role")
    if role != "assistant" and "content" not in message:
        raise bad_value(f"{path}.content", f"{path}.content is required.")
    fields: dict[str, Any] = {"role": role, "content": read_content(message.get("content"), f"{path}.content")}
    for known in ("name", "tool_call_id", *REASONING):
        if message.get(known) is not None:
            fields[known] = text(message[known], f"{path}.{known}")
    calls = objects(message.get("tool_calls") or [], f"{path}.tool_calls")
    return fields | ({"tool_calls": unicode_throughout(calls, f"{path}.tool_calls")} if calls else {})


def read_content(content: Any, path: str) -> str:
    """Read the text of a content; text parts are joined by line breaks, as in vLLM."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return text(content, path)
    texts = []
    for index, part in enumerate(content):
        part_path = f"{path}[{index}]"
        if isinstance(part, str):
            texts.append(text(part, part_path))
            continue
        if not isinstance(part, dict):
            raise bad_value(part_path, f"{part_path} must be an object with type and text.")
        kind = part.get("type")
        field = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if field is None:
            shown = kind if isinstance(kind, str) and is_unicode(kind) else "that"
            raise unsupported(f"{part_path}.type", f"{part_path} is of type {shown}; the target reads only text.")
        texts.append(text(part.get(field), f"{part_path}.{field}"))
    return "\n".join(texts)


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
