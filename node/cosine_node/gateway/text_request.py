"""Requests for text: the bodies of chat and plain completions, checked and made alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_node.gateway.api_errors import bad_value, unsupported
from cosine_node.gateway.body import (
    Body,
    flag,
    is_unicode,
    required,
    stated_flag,
    text,
    token_ids,
    unicode_throughout,
    whole,
)
from cosine_node.gateway.fields import (
    HONOURED_IN_CHATS,
    HONOURED_IN_COMPLETIONS,
    refuse_others,
    refuse_stream_options,
)
from cosine_node.gateway.logprobs import read_chat_logprobs, read_completion_logprobs
from cosine_node.gateway.text_options import CHAT_DEFAULTS, COMPLETION_DEFAULTS, NO_BOUND, read_options
from cosine_node.gateway.tool_fields import read_tool_choice, read_tools
from cosine_p2p.request.chat import RESERVED, Chat, Message
from cosine_p2p.request.options import GenerationOptions, Prompt, choice_seed
from cosine_p2p.text.chat_template import REASONING
from cosine_p2p.text.prompt import TEXT_PARTS
from cosine_protocol.limits import MAX_PROMPT_TOKENS
from cosine_protocol.request import MAX_SEED

MAX_CHOICES: Final = 64
"""Bounds the work of one request: four times the generations that a gateway runs at once by default."""
OWN_FIELDS: Final = {"documents": "documents", "reasoning_effort": "reasoning_effort"}
"""Options of a template that have a field of a chat's body to themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChoice:
    """One text to generate: `index` among all of the request, `number` among those for its prompt."""

    index: int
    number: int
    prompt: Prompt
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request. Without a `model` the gateway's is meant; without `seed` one is drawn.

    `asked` are the options of the text that the body names; the model's own generation config sets the defaults of
    the others, and `otherwise` holds where it says nothing. With `is_echoed` the text begins with the prompt.
    Without `adds_special_tokens` prompts are read without those that the tokenizer adds. Only requests of the same
    `cache_salt` share cached prefixes. `wishes` are options of a chat's template that are left out where it does
    not read them, `template_fields` the fields of the body that hold an option of it, by its name. With
    `tells_provenance` the reply says whose each token is, and proves it.
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
    template_fields: Mapping[str, str] = field(default_factory=lambda: OWN_FIELDS)

    @property
    def is_generating(self) -> bool:
        """False where no token is wanted after the prompt."""
        return self.asked.get("max_new_tokens") != 0

    @property
    def is_plain(self) -> bool:
        """True if each choice is the text after its prompt, read as the target has it, and no more."""
        return self.is_generating and self.adds_special_tokens and not self.is_echoed

    def choices(self, seed: int) -> tuple[RequestedChoice, ...]:
        """All texts to generate: n for the first prompt, then n for the next; each prompt's seeds begin anew."""
        return tuple(
            RequestedChoice(
                index=row * self.n + number, number=number, prompt=prompt, seed=choice_seed(seed, number)
            )
            for row, prompt in enumerate(self.prompts)
            for number in range(self.n)
        )


Parse = Callable[[Body], TextRequest]


def parse_chat(body: Body) -> TextRequest:
    """The body of `/v1/chat/completions`. Raises `ApiError`."""
    refuse_others(body, HONOURED_IN_CHATS)
    request = text_request(
        body, prompt_field="messages", prompts=(read_chat(body),), least_tokens=1, otherwise=CHAT_DEFAULTS
    )
    return replace(
        request,
        asked={**request.asked, **read_chat_logprobs(body)},
        tells_provenance=flag(body, "provenance"),
    )


def parse_completion(body: Body) -> TextRequest:
    """The body of `/v1/completions`. Raises `ApiError`."""
    refuse_others(body, HONOURED_IN_COMPLETIONS)
    prompts = _prompts(required(body, "prompt"))
    request = text_request(
        body, prompt_field="prompt", prompts=prompts, least_tokens=0, otherwise=COMPLETION_DEFAULTS
    )
    adds_special_tokens = stated_flag(body, "add_special_tokens") is not False
    return replace(
        request,
        asked={**request.asked, **read_completion_logprobs(body)},
        is_echoed=flag(body, "echo"),
        adds_special_tokens=adds_special_tokens,
    )


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """A text or token ids, or several of either."""
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
    """The fields that bodies of all kinds have. Raises `ApiError`."""
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
    """The chat of a body, and how its template is used, by vLLM's names for it. Raises `ApiError`."""
    given = required(body, "messages")
    if not isinstance(given, list) or not given:
        raise bad_value("messages", "messages must be a list of at least one message.")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    begins, continues = (stated_flag(body, name) for name in ("add_generation_prompt", "continue_final_message"))
    if begins and continues:
        raise bad_value(
            "continue_final_message",
            "continue_final_message goes on with the last message, add_generation_prompt begins one; set one.",
        )
    options = body.get("chat_template_kwargs")
    if not isinstance(options, dict | None) or not RESERVED.isdisjoint(options or {}):
        taken = ", ".join(sorted(RESERVED))
        raise bad_value("chat_template_kwargs", f"chat_template_kwargs must be an object without {taken}.")
    effort = body.get("reasoning_effort")
    if effort is not None:
        options = {"reasoning_effort": text(effort, "reasoning_effort"), **(options or {})}
    documents = body.get("documents")
    if not isinstance(documents, list | None) or not all(isinstance(each, dict) for each in documents or []):
        raise bad_value("documents", "documents must be a list of objects.")
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
    """The fields that templates read; what a role means is up to the target's."""
    if not isinstance(message, dict):
        raise bad_value(path, f"{path} must be an object with role and content.")
    for known in ("function_call", "audio"):
        if message.get(known):
            raise unsupported(f"{path}.{known}", f"{path}.{known} is not supported here.")
    role = text(required(message, "role", path=f"{path}.role"), f"{path}.role")
    if role != "assistant" and "content" not in message:
        raise bad_value(f"{path}.content", f"{path}.content is required.")
    fields: dict[str, Any] = {"role": role, "content": read_content(message.get("content"), f"{path}.content")}
    for known in ("name", "tool_call_id", *REASONING):
        if message.get(known) is not None:
            fields[known] = text(message[known], f"{path}.{known}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise bad_value(f"{path}.tool_calls", f"{path}.tool_calls must be a list of objects.")
    return fields | ({"tool_calls": unicode_throughout(calls, f"{path}.tool_calls")} if calls else {})


def read_content(content: Any, path: str) -> str:
    """Text; none is empty, and parts that are all text are joined by line breaks as vLLM does."""
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
            raise unsupported(f"{part_path}.type", f"{part_path} is of type {shown}; the target reads text alone.")
        texts.append(text(part.get(field), f"{part_path}.{field}"))
    return "\n".join(texts)
