"""A mandate holds for one delegate, one request and a while, and only if the request's own client signed it."""

from dataclasses import replace

import pytest

from cosine_protocol.digests import request_digest
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.limits import MAX_MANDATE_S, MAX_RECORD_SKEW_S
from cosine_protocol.messages import Mandate, SignedMandate
from cosine_protocol.statements import check_length, check_live, open_mandate, sign_mandate
from tests.protocol.samples import LIFETIME_S, NOW_S, OTHER, OWNER, request_of

CLIENT, DELEGATE = OTHER, OWNER
D_0 = request_digest(request_of())
SIGNED = sign_mandate(
    CLIENT,
    d_0=D_0,
    delegate=DELEGATE.peer_id,
    drafters=("a", "b"),
    most_tokens=10,
    issued_at_s=NOW_S,
    lifetime_s=LIFETIME_S,
)


def opened(
    signed: SignedMandate = SIGNED,
    *,
    client: str = CLIENT.peer_id,
    d_0: bytes = D_0,
    delegate: str = DELEGATE.peer_id,
    now_s: float = NOW_S,
) -> Mandate:
    return open_mandate(signed, client=client, d_0=d_0, delegate=delegate, now_s=now_s)


def test_its_delegate_may_use_it_until_it_ends() -> None:
    mandate = Mandate(DELEGATE.peer_id, ("a", "b"), 10, NOW_S, LIFETIME_S)
    assert opened() == opened(now_s=NOW_S + LIFETIME_S) == opened(now_s=NOW_S - MAX_RECORD_SKEW_S) == mandate


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": DELEGATE.peer_id}, "the signature of a mandate does not match"),
        ({"client": "nobody"}, "not a"),
        ({"d_0": bytes(16)}, "the signature of a mandate does not match"),
        ({"delegate": CLIENT.peer_id}, "for another peer"),
        ({"now_s": NOW_S + LIFETIME_S + 0.1}, "has ended"),
        ({"now_s": NOW_S - MAX_RECORD_SKEW_S - 1}, "lies in the future"),
        ({"signed": replace(SIGNED, body=SIGNED.body + b"\0")}, "does not match"),
        ({"signed": SignedMandate(b"x", CLIENT.sign(kind="mandate", digest=D_0, body=b"x"))}, "array|fields"),
    ],
)
def test_for_anybody_or_anything_else_it_is_worth_nothing(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(PeerError, match=reason) as refused:
        opened(**changes)  # type: ignore[arg-type]
    assert refused.value.code == ErrorCode.BAD_MANDATE


def test_it_lasts_no_longer_than_the_protocol_allows() -> None:
    signed = sign_mandate(
        CLIENT, d_0=D_0, delegate=DELEGATE.peer_id, drafters=(), most_tokens=1, issued_at_s=NOW_S, lifetime_s=1e9
    )
    mandate = opened(signed)
    check_live(mandate, now_s=NOW_S + MAX_MANDATE_S)
    with pytest.raises(PeerError):
        check_live(mandate, now_s=NOW_S + MAX_MANDATE_S + 1)


def test_it_is_good_for_so_many_tokens() -> None:
    check_length(opened(), 10)
    with pytest.raises(PeerError, match="ends after 10 tokens"):
        check_length(opened(), 11)
