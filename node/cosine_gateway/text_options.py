"""Sampling options in request bodies: the fields of OpenAI, vLLM and llama.cpp's server."""

from typing import Any, Final

from cosine_gateway.api_errors import bad_value
from cosine_gateway.body import Body, flag, real, text, token_ids, whole, whole_value
from cosine_gateway.constraints import read_constraint
from cosine_p2p.request.options import TEXT_DEFAULTS, GenerationOptions, read_option
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_NEW_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_BAD_WORDS, MAX_BIAS, MAX_BIASES, MAX_EOS_TOKENS, MIN_TOP_P

MAX_STOPS: Final = 64
"""OpenAI's API allows 4, other servers any number; the whole text is searched for each."""
MAX_STOP_CHARACTERS: Final = 1024
"""Bounds the work, and the text that is held back."""
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

REALS: Final = (
    *("temperature", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)


def read_options(body: Body, *, least_tokens: int) -> dict[str, Any]:
    """Read the generation options of a body; a length must be at least `least_tokens`. Raises `ApiError`."""
    options: dict[str, Any] = {name: real(body, name, 0.0) for name in REALS if body.get(name) is not None}
    if options.get("top_p") == 0:
        # OpenAI's API allows 0: only the best token remains.
        options["top_p"] = MIN_TOP_P
    if body.get("top_k") is not None:
        # -1 disables it in vLLM.
        options["top_k"] = max(0, whole(body, "top_k", 0, low=-1, high=MAX_TOKEN_ID))
    found: dict[str, Any] = {
        "logit_bias": _biases(body),
        "bad_words": _words(body),
        "stop_token_ids": token_ids(body.get("stop_token_ids") or [], "stop_token_ids", high=MAX_EOS_TOKENS),
        "ignore_eos": flag(body, "ignore_eos"),
        "stop": _stops(body),
        "prediction": _prediction(body),
    }
    options |= {name: value for name, value in found.items() if value} | read_constraint(body)
    for name, value in options.items():
        try:
            read_option(name, value)
        except UsageError as error:
            raise bad_value(name, str(error)) from None
    return options | _lengths(body, least_tokens)


def _lengths(body: Body, least_tokens: int) -> dict[str, int]:
    """Read the limits of the length; OpenAI's newer names take precedence over `max_tokens`."""
    lengths: dict[str, int] = {}
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if body.get(name) is None:
            continue
        limit = whole(body, name, 0, low=NO_BOUND, high=MOST_TOKENS)
        if NO_BOUND < limit < least_tokens:
            raise bad_value(name, f"{name} must be at least {least_tokens}, or {NO_BOUND} for no bound.")
        # The context ends before the protocol's limit.
        lengths["max_new_tokens"] = MAX_NEW_TOKENS if limit == NO_BOUND else min(limit, MAX_NEW_TOKENS)
    if least := whole(body, "min_tokens", 0, low=0, high=MAX_NEW_TOKENS):
        if least > lengths.get("max_new_tokens", MAX_NEW_TOKENS):
            raise bad_value("min_tokens", "min_tokens must be at most max_tokens.")
        lengths["min_tokens"] = least
    return lengths


def _prediction(body: Body) -> str:
    """Read OpenAI's predicted text: a string, or parts of type text."""
    prediction = body.get("prediction")
    if prediction is None:
        return ""
    if not isinstance(prediction, dict) or prediction.get("type") != "content":
        raise bad_value("prediction", "prediction must be an object with type content.")
    content = prediction.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        raise bad_value("prediction", "The content of a prediction must be text, or parts of type text.")
    return "".join(text(part.get("text"), "prediction") for part in parts)


def _stops(body: Body) -> tuple[str, ...]:
    """Read the stop texts; empty ones are ignored, as in llama.cpp's server."""
    name = "stop" if body.get("stop_sequences") is None else "stop_sequences"
    stop = body.get(name)
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    stops = [each for each in (text(each, name) for each in stops) if each]
    if len(stops) > MAX_STOPS or any(len(each) > MAX_STOP_CHARACTERS for each in stops):
        raise bad_value(
            name, f"{name} must be at most {MAX_STOPS} texts of at most {MAX_STOP_CHARACTERS} characters."
        )
    return tuple(stops)


def _words(body: Body) -> tuple[str, ...]:
    """Read the words that the text must not contain."""
    words = body.get("bad_words")
    if words is None:
        return ()
    if not isinstance(words, list) or len(words) > MAX_WORDS:
        raise bad_value("bad_words", f"bad_words must be a list of at most {MAX_WORDS} texts.")
    words = [text(word, "bad_words") for word in words]
    if any(not 0 < len(word) <= MAX_STOP_CHARACTERS for word in words):
        raise bad_value("bad_words", f"Each of bad_words must have 1 to {MAX_STOP_CHARACTERS} characters.")
    return tuple(words)


def _biases(body: Body) -> dict[int, float]:
    """Read token biases: OpenAI's object, or llama.cpp's pairs, in which false bans a token."""
    biases = body.get("logit_bias") or {}
    pairs = list(biases.items()) if isinstance(biases, dict) else biases
    if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
        raise bad_value(
            "logit_bias", f"logit_bias must be an object of at most {MAX_BIASES} token ids and numbers."
        )
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise bad_value("logit_bias", "logit_bias must be an object of token ids and numbers.")
        token, bias = pair
        if isinstance(token, str) and token.isascii() and token.isdecimal():
            token = int(token[:20])
        name = whole_value(token, "logit_bias", low=0, high=MAX_TOKEN_ID)
        found[name] = -MAX_BIAS if bias is False else real({"logit_bias": bias}, "logit_bias", 0.0)
    return found
