"""Parameters that would change the text in ways the swarm cannot; ignoring them would answer another question."""

from collections.abc import Mapping
from typing import Any, Final

from cosine_node.gateway.api_errors import unsupported
from cosine_node.gateway.fields import Body

NOTHING: Final[tuple[Any, ...]] = (None, False, "", [], {})

# What each value may be that asks for nothing.
HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
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
REASONS: Final[Mapping[str, str]] = {
    "logprobs": "verifiers send tokens, not their probabilities",
    "top_logprobs": "verifiers send tokens, not their probabilities",
    "prompt_logprobs": "verifiers send tokens, not their probabilities",
    "best_of": "verifiers send no probabilities to choose by; ask for n choices instead",
}
NO_SUCH_PROCESSOR: Final = "every peer of a request applies the same few samplers, and this is none of them"


def refuse_unsupported(body: Body) -> None:
    """Raises `ApiError` for the first parameter that cannot be honoured."""
    for name, harmless in HARMLESS.items():
        value = body.get(name)
        if not any(_is_same(value, each) for each in harmless) and not _asks_for_all(body, name):
            raise unsupported(name, f"{name} is not supported here: {REASONS.get(name, NO_SUCH_PROCESSOR)}.")


def _is_same(value: Any, harmless: Any) -> bool:
    """Equal as JSON, where false is not 0."""
    return bool(value == harmless) and isinstance(value, bool) == isinstance(harmless, bool)


def _asks_for_all(body: Body, name: str) -> bool:
    """The best n of n are all of them."""
    return name == "best_of" and body[name] == body.get("n")
