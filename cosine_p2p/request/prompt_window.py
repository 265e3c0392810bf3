"""The end of a prompt, which is all of it that drafters are shown whom the user does not know. Pure."""

from dataclasses import replace
from typing import Final

from cosine_p2p.request.options import ClientOptions
from cosine_protocol.limits import MAX_PROMPT_TOKENS, NONCE_BYTES
from cosine_protocol.request import Request

USUAL_WINDOW_TOKENS: Final = 256
"""Measured (decision 34): small models draft as well after 128 tokens as after thousands."""


def window_of(options: ClientOptions) -> int | None:
    """The most tokens of the prompt that drafters shall see; None for the whole prompt.

    Where the user says nothing, it is the whole prompt for peers that `trust` names, or a private swarm admits.
    """
    given = options.get("prompt_window_tokens")
    if given is None:
        given = 0 if options["trust"] or options.get("swarm") else USUAL_WINDOW_TOKENS
    return min(given, MAX_PROMPT_TOKENS) or None


def windowed(request: Request, window_tokens: int) -> Request:
    """A request as a drafter gets it who sees the last `window_tokens` tokens of the prompt.

    Without the nonce, so that guesses of the rest cannot be tested by the digest.
    """
    return replace(request, prompt=request.prompt[-window_tokens:], nonce=bytes(NONCE_BYTES))
