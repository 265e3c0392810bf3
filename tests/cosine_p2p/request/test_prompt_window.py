"""Strangers that draft are shown the end of a prompt and nothing that tells of the rest."""

from typing import Any

import pytest

from cosine_p2p.request.options import DEFAULTS, ClientOptions, merge_options
from cosine_p2p.request.prompt_window import USUAL_WINDOW_TOKENS, window_of, windowed
from cosine_protocol.limits import MAX_PROMPT_TOKENS
from tests.protocol.samples import request_of


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, USUAL_WINDOW_TOKENS),
        ({"prompt_window_tokens": None}, USUAL_WINDOW_TOKENS),
        ({"trust": ["somebody"]}, None),
        ({"swarm": "friends.swarm"}, None),
        ({"prompt_window_tokens": 0}, None),
        ({"prompt_window_tokens": 40, "trust": ["somebody"], "swarm": "friends.swarm"}, 40),
        ({"prompt_window_tokens": 10**9}, MAX_PROMPT_TOKENS),
    ],
)
def test_it_is_as_the_user_says_else_as_the_user_knows_the_drafters(
    options: dict[str, Any], expected: int | None
) -> None:
    assert window_of(merge_options(DEFAULTS, options, ClientOptions)) == expected


@pytest.mark.parametrize("window_tokens", [1, 2, 3, 1000])
def test_it_is_the_end_of_the_prompt_without_the_nonce(window_tokens: int) -> None:
    request = request_of(prompt=(1, 2, 3), nonce=bytes(range(16)))
    shown = windowed(request, window_tokens)
    assert shown.prompt == (1, 2, 3)[-window_tokens:]
    assert shown.nonce == bytes(16)
    assert (shown.sampling, shown.client, shown.max_new_tokens) == (
        request.sampling,
        request.client,
        request.max_new_tokens,
    )
