"""A request that cannot be served is refused before it costs anything, with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.verifier.admission import admitted, check_claim
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.messages import AskAudit, Open, Pacing, Transcript
from cosine_protocol.request import Request
from cosine_protocol.statements import sign_transcript
from tests.node.peers import SERVER, TARGET, TOKENIZER, request_of

ENGINE = ScriptedEngine(vocab_tokens=16, context_tokens=32)


def admit(committed: tuple[int, ...] = (), **changes: Any) -> Request:
    """Open a stream as client "c"; `changes` are fields of the request."""
    request = replace(request_of("c"), **changes)
    message = Open(1, request, committed, Pacing.FREE, ())
    return admitted(message, "c", engine=ENGINE, target_digest=TARGET, tokenizer_digest=TOKENIZER)


@pytest.mark.parametrize("committed", [(), (4, 5)])
def test_a_request_that_fits_is_served_from_wherever_it_goes_on(committed: tuple[int, ...]) -> None:
    assert admit(committed, prompt=(1,) * 24) == request_of("c", prompt=(1,) * 24)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"client": "d"}, ErrorCode.MALFORMED),
        ({"target_digest": bytes([7]) * 32}, ErrorCode.WRONG_TARGET),
        ({"tokenizer_digest": bytes([7]) * 32}, ErrorCode.WRONG_TOKENIZER),
        ({"numerics": "float32"}, ErrorCode.UNSUPPORTED),
        ({"prompt": ()}, ErrorCode.UNSUPPORTED),
        ({"prompt": (1,) * 25}, ErrorCode.PROMPT_TOO_LONG),
        ({"prompt": (1, 16)}, ErrorCode.WRONG_TOKENIZER),
        ({"committed": (3, 16)}, ErrorCode.WRONG_TOKENIZER),
        ({"committed": (3,) * 8}, ErrorCode.BAD_COMMITTED),
        ({"committed": (3,), "eos": (3,)}, ErrorCode.BAD_COMMITTED),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(PeerError) as refused:
        admit(**changes)
    assert refused.value.code == code


def check(tokens: tuple[int, ...] = (4, 5), **changes: Any) -> Transcript:
    """Ask for an audit of what `SERVER` signed; `changes` are fields of the request."""
    request = replace(request_of("another client"), **changes)
    d_0 = request_digest(request)
    transcript = Transcript(0, len(tokens), roll_digest(d_0, tokens))
    claim = AskAudit(1, request, tokens, SERVER.peer_id, sign_transcript(SERVER, transcript, d_0=d_0))
    return check_claim(claim, engine=ENGINE, target_digest=TARGET, tokenizer_digest=TOKENIZER)


def test_anybody_may_have_a_stream_audited_that_was_signed_for_this_target() -> None:
    assert check().tokens == 2
    assert check((4, 5, 3), eos=(3,)).tokens == 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_digest": bytes([7]) * 32}, ErrorCode.WRONG_TARGET),
        ({"tokenizer_digest": bytes([7]) * 32}, ErrorCode.WRONG_TOKENIZER),
        ({"numerics": "float32"}, ErrorCode.UNSUPPORTED),
        ({"prompt": ()}, ErrorCode.UNSUPPORTED),
        ({"prompt": (1,) * 31}, ErrorCode.PROMPT_TOO_LONG),
        ({"tokens": (3, 16)}, ErrorCode.WRONG_TOKENIZER),
        ({"tokens": ()}, ErrorCode.BAD_TRANSCRIPT),
    ],
)
def test_what_cannot_be_audited_here_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(PeerError) as refused:
        check(**changes)
    assert refused.value.code == code
