"""Requests for text: the bodies of chat and plain completions, checked and made alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cosine_node.gateway.api_errors import bad_value, unsupported
from cosine_node.gateway.json_body import Body, flag, is_unicode, real, required, text, whole
from cosine_p2p.options import Prompt, choice_seed
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_NEW_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_SEED, Sampling

MAX_CHOICES: Final = 64
"""Bounds the work of one request: four times the generations that a gateway runs at once by default."""

# OpenAI's reference bounds stops to 4; their length is ours, for each is searched for in all the text.
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024

DEFAULT_COMPLETION_TOKENS: Final = 16
"""As OpenAI's reference has it."""

DEFAULT_CHAT_TOKENS: Final = 1024
"""A choice: OpenAI's reference has no bound, but a model that never ends would hold a slot for minutes."""

# The parameters that would change the text in ways the swarm cannot, and what is said of them.
NOTHING: Final[tuple[Any, ...]] = (None, False, "", [], {})
ASKING_FOR_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": NOTHING,
    "bad_words": NOTHING,
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": NOTHING,
    "guided_choice": NOTHING,
    "guided_grammar": NOTHING,
    "guided_json": NOTHING,
    "guided_regex": NOTHING,
    "ignore_eos": NOTHING,
    "logit_bias": NOTHING,
    "logprobs": (None, False),
    "min_tokens": (None, 0),
    "modalities": (*NOTHING, ["text"]),
    "presence_penalty": (None, 0),
    "prompt_logprobs": (None, False),
    "response_format": (None, {"type": "text"}),
    "stop_token_ids": NOTHING,
    "structured_outputs": NOTHING,
    "suffix": NOTHING,
    "tool_choice": (None, "none", "auto"),
    "tools": NOTHING,
    "top_logprobs": (None, 0),
    "use_beam_search": NOTHING,
    "web_search_options": (None,),
}
"""The values of each parameter that ask for nothing; ignoring any other would answer another question."""

# Without a reason of its own, a parameter is refused as no such processor.
NO_PROBABILITIES: Final = "verifiers send tokens, not their probabilities"
NO_SUCH_PROCESSOR: Final = "every peer of a request applies the same few samplers, and this is none of them"
REASONS: Final[Mapping[str, str]] = {
    "logprobs": NO_PROBABILITIES,
    "top_logprobs": NO_PROBABILITIES,
    "prompt_logprobs": NO_PROBABILITIES,
    "best_of": "verifiers send no probabilities to choose by; ask for n choices instead",
}


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
    chat = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    limit_field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_new_tokens = whole(body, limit_field, DEFAULT_CHAT_TOKENS, low=1, high=MAX_TOKEN_ID)
    return _text_request(body, prompt_field="messages", prompts=(chat,), max_new_tokens=max_new_tokens)


def parse_completion(body: Body) -> TextRequest:
    """The body of `/v1/completions`. Raises `ApiError`."""
    prompt = required(body, "prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise bad_value("prompt", "prompt must be a string or a list of strings.")
    if any(isinstance(each, int | list) for each in prompts):
        raise unsupported("prompt", "Prompts of token ids are not supported here; send text.")
    texts = tuple(text(each, "prompt") for each in prompts)
    max_new_tokens = whole(body, "max_tokens", DEFAULT_COMPLETION_TOKENS, low=1, high=MAX_TOKEN_ID)
    request = _text_request(body, prompt_field="prompt", prompts=texts, max_new_tokens=max_new_tokens)
    return replace(request, is_echoed=flag(body, "echo"))


def _text_request(body: Body, *, prompt_field: str, prompts: Sequence[Prompt], max_new_tokens: int) -> TextRequest:
    """The fields that both kinds of bodies have. Raises `ApiError`."""
    refuse_unsupported(body)
    n = whole(body, "n", 1, low=1, high=MAX_CHOICES)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_value("n", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    is_streamed = flag(body, "stream")
    return TextRequest(
        model=text(required(body, "model"), "model"),
        prompt_field=prompt_field,
        prompts=tuple(prompts),
        n=n,
        # More than the protocol's limit is the limit: the context ends before.
        max_new_tokens=min(max_new_tokens, MAX_NEW_TOKENS),
        sampling=_sampling(body),
        seed=None if body.get("seed") is None else whole(body, "seed", 0, low=0, high=MAX_SEED),
        stop=_stops(body.get("stop")),
        is_streamed=is_streamed,
        includes_usage=_includes_usage(body.get("stream_options"), is_streamed=is_streamed),
    )


def refuse_unsupported(body: Body) -> None:
    """Raises `ApiError` for the first parameter that cannot be honoured."""
    for name, values in ASKING_FOR_NOTHING.items():
        value = body.get(name)
        # Equal as JSON, where false is not 0.
        if any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values):
            continue
        # The best n of n are all of them.
        if name == "best_of" and value == body.get("n"):
            continue
        raise unsupported(name, f"{name} is not supported here: {REASONS.get(name, NO_SUCH_PROCESSOR)}.")


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


def _message(message: Any, path: str) -> dict[str, str]:
    """Role, content and name; what a role means is up to the target's chat template."""
    if not isinstance(message, dict):
        raise bad_value(path, f"{path} must be an object with role and content.")
    for field in ("tool_calls", "function_call", "audio"):
        if message.get(field):
            raise unsupported(f"{path}.{field}", f"{path}.{field} is not supported here.")
    role = required(message, "role", path=f"{path}.role")
    content = required(message, "content", path=f"{path}.content")
    fields = {"role": text(role, f"{path}.role"), "content": _content(content, f"{path}.content")}
    if message.get("name") is not None:
        fields["name"] = text(message["name"], f"{path}.name")
    return fields


def _content(content: Any, path: str) -> str:
    """Text, or parts that are all text, joined by line breaks as vLLM does."""
    if not isinstance(content, list):
        return text(content, path)
    texts = []
    for index, part in enumerate(content):
        part_path = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise bad_value(part_path, f"{part_path} must be an object with type and text.")
        kind = part.get("type")
        if kind != "text":
            shown = kind if isinstance(kind, str) and is_unicode(kind) else "that"
            raise unsupported(f"{part_path}.type", f"{part_path} is of type {shown}; the target reads text alone.")
        texts.append(text(part.get("text"), f"{part_path}.text"))
    return "\n".join(texts)
