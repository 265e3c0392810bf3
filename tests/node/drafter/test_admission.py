"""A drafter follows what fits its tokenizer, vocabulary and context, and says why else."""

from typing import Any

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.service import check_start
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from tests.node.peers import TOKENIZER, request_of

ENGINE = ScriptedEngine(vocab_tokens=8, context_tokens=6)


def check(
    *, committed: tuple[int, ...] = (), is_in_use: bool = False, tokenizer: bytes = TOKENIZER, **request: Any
) -> None:
    start = m.Start(1, request_of("client", **{"prompt": (1, 2, 3)} | request), committed)
    check_start(start, ENGINE, tokenizer_digest=tokenizer, is_in_use=is_in_use)


def test_what_fits_is_followed_to_the_last_token_of_the_context() -> None:
    check(committed=(7, 0))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"prompt": ()}, ErrorCode.MALFORMED),
        ({"is_in_use": True}, ErrorCode.MALFORMED),
        ({"tokenizer": bytes(32)}, ErrorCode.WRONG_TOKENIZER),
        ({"prompt": (8,)}, ErrorCode.WRONG_TOKENIZER),
        ({"committed": (8,)}, ErrorCode.WRONG_TOKENIZER),
        ({"committed": (0, 0, 0)}, ErrorCode.PROMPT_TOO_LONG),
    ],
)
def test_what_does_not_is_refused_with_the_reason(given: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(PeerError) as refused:
        check(**given)
    assert refused.value.code == code
