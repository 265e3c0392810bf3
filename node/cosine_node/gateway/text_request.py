"""Requests for text: the bodies of chat and plain completions, checked and made alike."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, NoReturn

from starlette.requests import Request

from cosine_node.gateway.api_errors import ApiError, bad_value, unsupported
from cosine_p2p.request.chat import RESERVED, Chat, Message
from cosine_p2p.request.options import (
    OPTIONS,
    TEXT_DEFAULTS,
    GenerationOptions,
    Prompt,
    choice_seed,
    read_option,
)
from cosine_p2p.text.chat_template import REASONING
from cosine_p2p.text.prompt import TEXT_PARTS
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_NEW_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_SEED

MAX_BODY_BYTES: Final = 4 << 20
"""Bounds memory: several times the text of the longest contexts, in UTF-8 and escaped."""
BODY_TIMEOUT_S: Final = 30.0
"""The largest body over 1 Mbit/s; a client that sends a byte now and then is not waited for."""
MAX_CHOICES: Final = 64
"""Bounds the work of one request: four times the generations that a gateway runs at once by default."""
# OpenAI's reference bounds stops to 4; their length is ours, for each is searched for in all the text.
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024

# OpenAI's temperature is 1 by default. Its reference has no bound for a chat, but a model that never ends would
# hold a slot for minutes; the 16 tokens of a completion are its own.
CHAT_DEFAULTS: Final[GenerationOptions] = {**TEXT_DEFAULTS, "temperature": 1.0, "max_new_tokens": 1024}
COMPLETION_DEFAULTS: Final[GenerationOptions] = {**CHAT_DEFAULTS, "max_new_tokens": 16}

NOTHING: Final[tuple[Any, ...]] = (None, False, "", [], {})
ASKING_FOR_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("audio", "bad_words", "functions", "ignore_eos", "logit_bias", "stop_token_ids"), NOTHING),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), NOTHING),
    **dict.fromkeys(("chat_template", "structured_outputs", "suffix", "tools", "use_beam_search"), NOTHING),
    **dict.fromkeys(("frequency_penalty", "min_tokens", "presence_penalty", "top_logprobs"), (None, 0)),
    **dict.fromkeys(("function_call", "tool_choice"), (None, "none", "auto")),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), (None, False)),
    "best_of": (None, 1),
    "modalities": (*NOTHING, ["text"]),
    "response_format": (None, {"type": "text"}),
    "web_search_options": (None,),
}
"""The values that ask for nothing, of each parameter that would change the text in a way the swarm cannot.

Ignoring any other would answer another question.
"""
REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("logprobs", "top_logprobs", "prompt_logprobs"), "verifiers send tokens, not their probabilities"
    ),
    "chat_template": "chats are written by the target's own template",
    "best_of": "verifiers send no probabilities to choose by; ask for n choices instead",
}
"""What is said of them; without a reason of its own, a parameter is refused as no such processor."""

Body = Mapping[str, Any]


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object a request carries; it is waited for `BODY_TIMEOUT_S`."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_BODY_BYTES:
                    message = f"The body has more than {MAX_BODY_BYTES} bytes."
                    raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, code="body_too_large")
    except TimeoutError:
        message = f"The body was not there within {BODY_TIMEOUT_S:g} s."
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, message, code="body_too_slow") from None
    return parse_object(bytes(data))


def parse_object(data: bytes) -> dict[str, Any]:
    """Bytes as a JSON object."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(data, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.", code="invalid_json")
    return value


def required(body: Body, name: str, *, path: str = "") -> Any:
    """A field that must be there; `path` is how errors name it, by default `name`."""
    value = body.get(name)
    if value is None:
        raise bad_value(path or name, f"{path or name} is required.")
    return value


def whole(body: Body, name: str, default: int, *, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_value(name, f"{name} must be a whole number from {low} to {high}.")
    return value


def real(body: Body, name: str, default: float) -> float:
    """A number of any size."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_value(name, f"{name} must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise bad_value(name, f"{name} is too large.") from None


def flag(body: Body, name: str) -> bool:
    """True or false, the default."""
    return bool(stated_flag(body, name))


def stated_flag(body: Body, name: str) -> bool | None:
    """True, false, or None where the body does not say."""
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise bad_value(name, f"{name} must be true or false.")
    return value


def text(value: Any, name: str) -> str:
    """A string that can be written as UTF-8, which half a surrogate pair cannot."""
    if not isinstance(value, str):
        raise bad_value(name, f"{name} must be a string.")
    if not is_unicode(value):
        raise bad_value(name, f"{name} holds half of a surrogate pair.")
    return value


def unicode_throughout(value: Any, name: str) -> Any:
    """A value of JSON none of whose strings holds half of a surrogate pair."""
    try:
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise bad_value(name, f"{name} is nested too deeply.") from None
    if not is_unicode(written):
        raise bad_value(name, f"{name} holds half of a surrogate pair.")
    return value


def is_unicode(value: str) -> bool:
    """True if a string can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChoice:
    """One text to generate: `index` among all of the request, `number` among those for its prompt.

    `echo` is text that stands before what is generated.
    """

    index: int
    number: int
    prompt: Prompt
    seed: int
    echo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request. Without `seed` one is drawn.

    `asked` are the options of the text that the body names; the model's own generation config sets the defaults of
    the others, and `otherwise` holds where it says nothing.
    """

    model: str
    prompt_field: str
    prompts: tuple[Prompt, ...]
    n: int
    asked: Mapping[str, int | float]
    otherwise: GenerationOptions
    seed: int | None
    stop: tuple[str, ...]
    is_streamed: bool
    includes_usage: bool
    is_echoed: bool = False

    def choices(self, seed: int) -> tuple[RequestedChoice, ...]:
        """All texts to generate: n for the first prompt, then n for the next; each prompt's seeds begin anew."""
        return tuple(
            RequestedChoice(
                index=row * self.n + number,
                number=number,
                prompt=prompt,
                seed=choice_seed(seed, number),
                echo=prompt if self.is_echoed and isinstance(prompt, str) else "",
            )
            for row, prompt in enumerate(self.prompts)
            for number in range(self.n)
        )


Parse = Callable[[Body], TextRequest]


def parse_chat(body: Body) -> TextRequest:
    """The body of `/v1/chat/completions`. Raises `ApiError`."""
    messages = required(body, "messages")
    if not isinstance(messages, list) or not messages:
        raise bad_value("messages", "messages must be a list of at least one message.")
    chat = _chat(body, [_message(message, f"messages[{index}]") for index, message in enumerate(messages)])
    limit_field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return _text_request(
        body, prompt_field="messages", prompts=(chat,), limit_field=limit_field, otherwise=CHAT_DEFAULTS
    )


def parse_completion(body: Body) -> TextRequest:
    """The body of `/v1/completions`. Raises `ApiError`."""
    prompt = required(body, "prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise bad_value("prompt", "prompt must be a string or a list of strings.")
    if any(isinstance(each, int | list) for each in prompts):
        raise unsupported("prompt", "Prompts of token ids are not supported here; send text.")
    texts = tuple(text(each, "prompt") for each in prompts)
    request = _text_request(
        body, prompt_field="prompt", prompts=texts, limit_field="max_tokens", otherwise=COMPLETION_DEFAULTS
    )
    return replace(request, is_echoed=flag(body, "echo"))


def _text_request(
    body: Body, *, prompt_field: str, prompts: Sequence[Prompt], limit_field: str, otherwise: GenerationOptions
) -> TextRequest:
    """The fields that both kinds of bodies have. Raises `ApiError`."""
    refuse_unsupported(body)
    n = whole(body, "n", 1, low=1, high=MAX_CHOICES)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_value("n", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    is_streamed = flag(body, "stream")
    model = text(required(body, "model"), "model")
    asked = _asked(body, limit_field)
    seed = None if body.get("seed") is None else whole(body, "seed", 0, low=0, high=MAX_SEED)
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise bad_value("stop", f"stop must be a string or a list of at most {MAX_STOPS}.")
    stops = [text(each, "stop") for each in stops]
    if any(not 0 < len(each) <= MAX_STOP_CHARACTERS for each in stops):
        raise bad_value("stop", f"Each stop must have 1 to {MAX_STOP_CHARACTERS} characters.")
    stream_options = body.get("stream_options")
    if stream_options is not None and not (isinstance(stream_options, dict) and is_streamed):
        raise bad_value("stream_options", "stream_options is an object, and only for stream true.")
    return TextRequest(
        model=model,
        prompt_field=prompt_field,
        prompts=tuple(prompts),
        n=n,
        asked=asked,
        otherwise=otherwise,
        seed=seed,
        stop=tuple(stops),
        is_streamed=is_streamed,
        includes_usage=stream_options is not None and flag(stream_options, "include_usage"),
    )


def refuse_unsupported(body: Body) -> None:
    """Raises `ApiError` for the first parameter that cannot be honoured."""
    for name, values in sorted(ASKING_FOR_NOTHING.items()):
        value = body.get(name)
        # Equal as JSON, where false is not 0.
        if any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values):
            continue
        # The best n of n are all of them.
        if name == "best_of" and value == body.get("n"):
            continue
        no_processor = "every peer of a request applies the same few samplers, and this is none of them"
        raise unsupported(name, f"{name} is not supported here: {REASONS.get(name, no_processor)}.")


def _asked(body: Body, limit_field: str) -> dict[str, int | float]:
    """The options of the text that a body names; -1 is vLLM's way to switch top_k off."""
    values: dict[str, Any] = {
        name: real(body, name, 0.0)
        for name, option in OPTIONS.items()
        if option.yields and option.kind.type is float and body.get(name) is not None
    }
    if body.get("top_k") is not None:
        values["top_k"] = max(0, whole(body, "top_k", 0, low=-1, high=MAX_TOKEN_ID))
    for name, value in values.items():
        try:
            read_option(name, value)
        except UsageError as error:
            raise bad_value(name, str(error)) from None
    if body.get(limit_field) is not None:
        # More than the protocol's limit is the limit: the context ends before.
        limit = whole(body, limit_field, 1, low=1, high=MAX_TOKEN_ID)
        values["max_new_tokens"] = min(limit, MAX_NEW_TOKENS)
    return values


def _chat(body: Body, messages: Sequence[Message]) -> Chat:
    """A chat and how its template is used, by vLLM's names for it. Raises `ApiError`."""
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
    return Chat(
        messages,
        documents=unicode_throughout(documents, "documents"),
        add_generation_prompt=begins is not False,
        continue_final_message=False if begins else continues,
        template_options=unicode_throughout(options or {}, "chat_template_kwargs"),
    )


def _message(message: Any, path: str) -> Message:
    """The fields that templates read; what a role means is up to the target's."""
    if not isinstance(message, dict):
        raise bad_value(path, f"{path} must be an object with role and content.")
    for field in ("function_call", "audio"):
        if message.get(field):
            raise unsupported(f"{path}.{field}", f"{path}.{field} is not supported here.")
    role = text(required(message, "role", path=f"{path}.role"), f"{path}.role")
    if role != "assistant" and "content" not in message:
        raise bad_value(f"{path}.content", f"{path}.content is required.")
    fields: dict[str, Any] = {"role": role, "content": _content(message.get("content"), f"{path}.content")}
    for field in ("name", "tool_call_id", *REASONING):
        if message.get(field) is not None:
            fields[field] = text(message[field], f"{path}.{field}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise bad_value(f"{path}.tool_calls", f"{path}.tool_calls must be a list of objects.")
    return fields | ({"tool_calls": unicode_throughout(calls, f"{path}.tool_calls")} if calls else {})


def _content(content: Any, path: str) -> str:
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
