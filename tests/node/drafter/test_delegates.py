"""What a drafter does for a peer that is not a request's client is bounded by that client's mandate."""

from typing import Any

import pytest

from cosine_node.drafter.service import check_use, may_keep_text, shown_mandate
from cosine_protocol import messages as m
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.messages import Mandate, SignedMandate
from cosine_protocol.statements import sign_mandate
from tests.node.peers import request_of

CLIENT = Identity.from_seed(bytes([200]) * 32)
REQUEST = request_of(CLIENT.peer_id)
D_0 = request_digest(REQUEST)
SIGNED = sign_mandate(
    CLIENT, d_0=D_0, delegate="verifier", drafters=("me",), most_tokens=3, issued_at_s=100.0, lifetime_s=10.0
)


def shown(peer_id: str, mandate: SignedMandate | None = SIGNED, **changes: Any) -> Mandate | None:
    options: dict[str, Any] = {"d_0": D_0, "drafter": "me", "in_use": (), "now_s": 101.0} | changes
    return shown_mandate(m.Start(1, REQUEST, (7,), mandate), peer_id, **options)


def test_the_client_itself_needs_none() -> None:
    assert shown(CLIENT.peer_id, None) is shown(CLIENT.peer_id) is None
    check_use(None, m.Advance(1, 1000, (1,)), now_s=1e9)


@pytest.mark.parametrize("said", [None, False, True])
@pytest.mark.parametrize("mandated", [None, False, True])
def test_a_text_is_kept_by_the_client_s_own_word_alone(said: bool | None, mandated: bool | None) -> None:
    start = m.Start(1, REQUEST, (), shares_feedback=said)
    assert may_keep_text(start, None) is bool(said)
    mandate = Mandate("verifier", ("me",), 3, 100.0, 10.0, None, mandated)
    assert may_keep_text(start, mandate) is bool(mandated)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mandate": None}, ErrorCode.MALFORMED),
        ({"peer_id": "another"}, ErrorCode.BAD_MANDATE),
        ({"drafter": "another"}, ErrorCode.BAD_MANDATE),
        ({"in_use": {D_0}}, ErrorCode.BAD_MANDATE),
        ({"now_s": 111.0}, ErrorCode.BAD_MANDATE),
    ],
)
def test_another_peer_needs_one_that_names_both_and_is_not_in_use(changes: dict[str, Any], code: ErrorCode) -> None:
    assert shown("verifier") is not None
    with pytest.raises(PeerError) as refused:
        shown(**{"peer_id": "verifier"} | changes)
    assert refused.value.code == code


def test_the_prompt_is_no_longer_than_its_window_and_its_request_is_known_by_the_digest_alone() -> None:
    def windowed(window_tokens: int) -> SignedMandate:
        return sign_mandate(
            CLIENT,
            d_0=bytes(16),
            delegate="verifier",
            drafters=("me",),
            most_tokens=3,
            issued_at_s=100.0,
            lifetime_s=10.0,
            prompt_window_tokens=window_tokens,
        )

    prompt_tokens = len(REQUEST.prompt)
    mandate = shown("verifier", windowed(prompt_tokens), d_0=bytes(16))
    assert mandate is not None and mandate.prompt_window_tokens == prompt_tokens
    with pytest.raises(PeerError, match="longer than") as refused:
        shown("verifier", windowed(prompt_tokens - 1), d_0=bytes(16))
    assert refused.value.code == ErrorCode.BAD_MANDATE


def test_its_tokens_and_its_end_hold_for_all_but_a_release() -> None:
    mandate = shown("verifier")
    check_use(mandate, m.Advance(1, 1, (1, 2)), now_s=110.0)
    check_use(mandate, m.Release(1), now_s=1e9)
    for message, now_s in ((m.Advance(1, 2, (1, 2)), 110.0), (m.Advance(1, 0, ()), 110.1)):
        with pytest.raises(PeerError):
            check_use(mandate, message, now_s=now_s)
