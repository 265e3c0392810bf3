"""Sampling options in request bodies: the fields of OpenAI, vLLM and llama.cpp's server."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cosine_gateway.api_errors import bad_value
from cosine_gateway.body import Body, flag, real, text, token_ids, whole, whole_field
from cosine_gateway.constraints import CONSTRAINTS, read_constraint
from cosine_p2p.request.options import TEXT_DEFAULTS, GenerationOptions, read_option
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_NEW_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_BAD_WORDS, MAX_BIAS, MAX_BIASES, MAX_EOS_TOKENS, MIN_TOP_P

MAX_STOPS: Final = 64
"""OpenAI's API allows 4, other servers any number; the whole text is searched for each."""
MAX_STOP_CHARACTERS: Final = 1024
"""Bounds the work and the withheld text."""
MAX_WORDS: Final = MAX_BAD_WORDS // 2
"""A word may be two token sequences: one alone and one after a space."""
NO_BOUND: Final = -1
"""No length limit, or a random seed, as in llama.cpp's server, Ollama and vLLM."""

# OpenAI's defaults, except the length of a chat: OpenAI sets no limit, but a model that never ends would hold a
# slot for minutes.
CHAT_DEFAULTS: Final[GenerationOptions] = {**TEXT_DEFAULTS, "temperature": 1.0, "max_new_tokens": 1024}
COMPLETION_DEFAULTS: Final[GenerationOptions] = {**CHAT_DEFAULTS, "max_new_tokens": 16}

MOST_TOKENS: Final = (1 << 63) - 1
"""Clients that want no limit send their largest integer."""


def read_options(body: Body, *, least_tokens: int) -> dict[str, Any]:
    """Read the generation options of a body; a length must be at least `least_tokens`. Raises `ApiError`."""
    options: dict[str, Any] = {}
    for name, read in _READERS.items():
        if body.get(name) is not None and (value := read(body[name], name)) is not None:
            options["stop" if name == "stop_sequences" else name] = value
    options |= read_constraint(body)
    for name, value in options.items():
        try:
            read_option(name, value)
        except UsageError as error:
            raise bad_value(name, str(error)) from None
    return options | _lengths(body, least_tokens)


def _lengths(body: Body, least_tokens: int) -> dict[str, int]:
    """Read the limits of the length."""
    lengths: dict[str, int] = {}
    for name in _LIMITS:
        if body.get(name) is None:
            continue
        limit = whole(body[name], name, low=NO_BOUND, high=MOST_TOKENS)
        if NO_BOUND < limit < least_tokens:
            raise bad_value(name, f"{name} must be at least {least_tokens}, or {NO_BOUND} for no bound.")
        # The context ends before the protocol's limit.
        lengths["max_new_tokens"] = MAX_NEW_TOKENS if limit == NO_BOUND else min(limit, MAX_NEW_TOKENS)
    if least := whole_field(body, "min_tokens", 0, low=0, high=MAX_NEW_TOKENS):
        if least > lengths.get("max_new_tokens", MAX_NEW_TOKENS):
            raise bad_value("min_tokens", "min_tokens must be at most max_tokens.")
        lengths["min_tokens"] = least
    return lengths


def _top_p(value: Any, name: str) -> float:
    """Read a share; OpenAI's API allows 0, which leaves only the best token."""
    return real(value, name) or MIN_TOP_P


def _top_k(value: Any, name: str) -> int:
    """Read a number of candidates; -1 disables it in vLLM."""
    return max(0, whole(value, name, low=-1, high=MAX_TOKEN_ID))


def _prediction(value: Any, name: str) -> str | None:
    """Read OpenAI's predicted text: a string, or parts of type text."""
    if not isinstance(value, dict) or value.get("type") != "content":
        raise bad_value(name, f"{name} must be an object with type content.")
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise bad_value(name, "The content of a prediction must be text, or parts of type text.")
    return "".join(text(part.get("text"), name) for part in parts) or None


def _stops(value: Any, name: str) -> tuple[str, ...] | None:
    """Read the stop texts; empty ones are ignored, as in llama.cpp's server."""
    given = value if isinstance(value, list) else [value]
    stops = tuple(each for each in (text(each, name) for each in given) if each)
    if len(stops) > MAX_STOPS or any(len(each) > MAX_STOP_CHARACTERS for each in stops):
        raise bad_value(
            name, f"{name} must be at most {MAX_STOPS} texts of at most {MAX_STOP_CHARACTERS} characters."
        )
    return stops or None


def _words(value: Any, name: str) -> tuple[str, ...] | None:
    """Read the words that the text must not contain."""
    if not isinstance(value, list) or len(value) > MAX_WORDS:
        raise bad_value(name, f"{name} must be a list of at most {MAX_WORDS} texts.")
    words = tuple(text(word, name) for word in value)
    if any(not 0 < len(word) <= MAX_STOP_CHARACTERS for word in words):
        raise bad_value(name, f"Each of {name} must have 1 to {MAX_STOP_CHARACTERS} characters.")
    return words or None


def _biases(value: Any, name: str) -> dict[int, float] | None:
    """Read token biases: OpenAI's object, or llama.cpp's pairs, in which false bans a token."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
        raise bad_value(name, f"{name} must be an object of at most {MAX_BIASES} token ids and numbers.")
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise bad_value(name, f"{name} must be an object of token ids and numbers.")
        token, bias = pair
        if isinstance(token, str) and token.isascii() and token.isdecimal():
            token = int(token[:20])
        found[whole(token, name, low=0, high=MAX_TOKEN_ID)] = -MAX_BIAS if bias is False else real(bias, name)
    return found or None


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("temperature", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"), real),
    "top_p": _top_p,
    "top_k": _top_k,
    "logit_bias": _biases,
    "bad_words": _words,
    "stop_token_ids": lambda value, name: token_ids(value or [], name, high=MAX_EOS_TOKENS) or None,
    "ignore_eos": lambda value, name: flag({name: value}, name) or None,
    "stop": _stops,
    "stop_sequences": _stops,
    "prediction": _prediction,
}
"""The readers of the fields of a client option; None means that a value asks for nothing."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The names of the maximum length; later names take precedence."""
OPTION_FIELDS: Final = frozenset({*_READERS, *CONSTRAINTS, *_LIMITS, "min_tokens"})
"""The fields that `read_options` reads. No API has all of them."""
