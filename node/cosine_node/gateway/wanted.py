"""What a request's body asks for, checked: chat completions and plain completions become one `Wanted`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cosine_node.gateway.api_errors import bad_value, unsupported
from cosine_node.gateway.fields import Body, flag, is_unicode, missing, real, required, text, whole
from cosine_node.gateway.refused import refuse_unsupported
from cosine_p2p.options import Prompt, choice_seed
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_NEW_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_SEED, Sampling

MAX_CHOICES: Final = 64
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024
DEFAULT_CHAT_TOKENS: Final = 1024
DEFAULT_COMPLETION_TOKENS: Final = 16
"""What OpenAI's reference says of completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChoice:
    """One text to generate: `index` among all of the request, `number` among those for its prompt.

    `lead` is text that stands before what is generated.
    """

    index: int
    number: int
    prompt: Prompt
    seed: int
    lead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One request. Without `seed` one is drawn; the seed in `sampling` has no meaning."""

    model: str
    prompt_field: str
    prompts: tuple[Prompt, ...]
    n: int
    max_new_tokens: int
    sampling: Sampling
    seed: int | None
    stop: tuple[str, ...]
    is_streamed: bool
    includes_usage: bool
    is_echoed: bool = False

    def choices(self, seed: int) -> tuple[WantedChoice, ...]:
        """All texts to generate: n for the first prompt, then n for the next; each prompt's seeds begin anew."""
        return tuple(
            WantedChoice(
                index=place * self.n + number,
                number=number,
                prompt=prompt,
                seed=choice_seed(seed, number),
                lead=prompt if self.is_echoed and isinstance(prompt, str) else "",
            )
            for place, prompt in enumerate(self.prompts)
            for number in range(self.n)
        )


Parse = Callable[[Body], Wanted]


def parse_chat(body: Body) -> Wanted:
    """The body of `/v1/chat/completions`. Raises `ApiError`."""
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return _wanted(
        body,
        prompt_field="messages",
        prompts=(_messages(required(body, "messages")),),
        max_new_tokens=_max_tokens(body, limit_name, DEFAULT_CHAT_TOKENS),
    )


def parse_completion(body: Body) -> Wanted:
    """The body of `/v1/completions`. Raises `ApiError`."""
    wanted = _wanted(
        body,
        prompt_field="prompt",
        prompts=_prompts(required(body, "prompt")),
        max_new_tokens=_max_tokens(body, "max_tokens", DEFAULT_COMPLETION_TOKENS),
    )
    return replace(wanted, is_echoed=flag(body, "echo"))


def _wanted(body: Body, *, prompt_field: str, prompts: tuple[Prompt, ...], max_new_tokens: int) -> Wanted:
    refuse_unsupported(body)
    n = whole(body, "n", 1, low=1, high=MAX_CHOICES)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_value("n", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    is_streamed = flag(body, "stream")
    return Wanted(
        model=text(required(body, "model"), "model"),
        prompt_field=prompt_field,
        prompts=prompts,
        n=n,
        max_new_tokens=max_new_tokens,
        sampling=_sampling(body),
        seed=_seed(body),
        stop=_stops(body.get("stop")),
        is_streamed=is_streamed,
        includes_usage=_includes_usage(body.get("stream_options"), is_streamed=is_streamed),
    )


def _max_tokens(body: Body, name: str, default: int) -> int:
    """More than the protocol's limit is the limit: the context ends before."""
    return min(whole(body, name, default, low=1, high=MAX_TOKEN_ID), MAX_NEW_TOKENS)


def _sampling(body: Body) -> Sampling:
    """OpenAI's temperature is 1 by default; -1 is vLLM's way to switch top_k off."""
    values: dict[str, Any] = {
        "temperature": real(body, "temperature", 1.0),
        "top_p": real(body, "top_p", 1.0),
        "min_p": real(body, "min_p", 0.0),
        "repetition_penalty": real(body, "repetition_penalty", 1.0),
        "top_k": max(0, whole(body, "top_k", 0, low=-1, high=MAX_TOKEN_ID)),
    }
    for name, value in values.items():
        try:
            Sampling(**{name: value})
        except UsageError as error:
            raise bad_value(name, str(error)) from None
    return Sampling(**values)


def _seed(body: Body) -> int | None:
    return None if body.get("seed") is None else whole(body, "seed", 0, low=0, high=MAX_SEED)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise bad_value("stop", f"stop must be a string or a list of at most {MAX_STOPS}.")
    texts = tuple(text(stop, "stop") for stop in stops)
    if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in texts):
        raise bad_value("stop", f"Each stop must have 1 to {MAX_STOP_CHARACTERS} characters.")
    return texts


def _includes_usage(options: Any, *, is_streamed: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict) or not is_streamed:
        raise bad_value("stream_options", "stream_options is an object, and only for stream true.")
    return flag(options, "include_usage")


def _prompts(value: Any) -> tuple[str, ...]:
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list) or not prompts:
        raise bad_value("prompt", "prompt must be a string or a list of strings.")
    if any(isinstance(prompt, int | list) for prompt in prompts):
        raise unsupported("prompt", "Prompts of token ids are not supported here; send text.")
    return tuple(text(prompt, "prompt") for prompt in prompts)


def _messages(value: Any) -> Sequence[Mapping[str, str]]:
    if not isinstance(value, list) or not value:
        raise bad_value("messages", "messages must be a list of at least one message.")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(value)]


def _message(message: Any, name: str) -> dict[str, str]:
    """Role, content and name; what a role means is up to the target's chat template."""
    if not isinstance(message, dict):
        raise bad_value(name, f"{name} must be an object with role and content.")
    for field in ("tool_calls", "function_call", "audio"):
        if message.get(field):
            raise unsupported(f"{name}.{field}", f"{name}.{field} is not supported here.")
    for field in ("role", "content"):
        if message.get(field) is None:
            raise missing(f"{name}.{field}")
    parts = {
        "role": text(message["role"], f"{name}.role"),
        "content": _content(message["content"], f"{name}.content"),
    }
    return parts if message.get("name") is None else parts | {"name": text(message["name"], f"{name}.name")}


def _content(content: Any, name: str) -> str:
    """Text, or parts that are all text, joined by line breaks as vLLM does."""
    if not isinstance(content, list):
        return text(content, name)
    return "\n".join(_part(part, f"{name}[{place}]") for place, part in enumerate(content))


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict):
        raise bad_value(name, f"{name} must be an object with type and text.")
    kind = part.get("type")
    if kind != "text":
        shown = kind if isinstance(kind, str) and is_unicode(kind) else "that"
        raise unsupported(f"{name}.type", f"{name} is of type {shown}; the target reads text alone.")
    return text(part.get("text"), f"{name}.text")
