"""Of each verifier the latest transcript is kept, with the tokens that it is about."""

from types import SimpleNamespace
from typing import Any, cast

from cosine_p2p.session.upstream import SignedStreams, Upstream
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.messages import SignedEarning, Transcript
from cosine_protocol.statements import open_claim, sign_transcript
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.session.test_session import REQUEST

OUTPUT = (4, 5, 6, 7)
D_0 = request_digest(REQUEST)


def upstream(number: int, first: int, tokens: int | None) -> Upstream:
    """A verifier that has signed the output up to so many tokens."""
    identity, signed = identity_of(number), None
    if tokens is not None:
        transcript = Transcript(first, tokens, roll_digest(D_0, OUTPUT[:tokens]))
        signed = sign_transcript(identity, transcript, d_0=D_0)
    seen: Any = SimpleNamespace(peer_id=identity.peer_id, first=first, transcript=signed, earned=())
    return cast("Upstream", seen)


def test_each_part_is_a_claim_of_its_own_and_the_latest_transcript_counts() -> None:
    streams = SignedStreams()
    for seen in (upstream(1, 0, 1), upstream(1, 0, 2), upstream(2, 2, None), upstream(2, 2, 3), upstream(1, 3, 4)):
        streams.note(seen)
    claims = streams.claims(REQUEST, OUTPUT)
    assert [(claim.author, open_claim(claim).first, claim.tokens) for claim in claims] == [
        (identity_of(1).peer_id, 0, OUTPUT[:2]),
        (identity_of(2).peer_id, 2, OUTPUT[:3]),
        (identity_of(1).peer_id, 3, OUTPUT),
    ]


def test_who_signed_nothing_claims_nothing() -> None:
    streams = SignedStreams()
    streams.note(upstream(1, 0, None))
    assert streams.claims(REQUEST, OUTPUT) == ()


def test_what_drafters_earned_comes_with_who_signed_it() -> None:
    streams, earning = SignedStreams(), SignedEarning(b"", bytes(64))
    first, second = upstream(1, 0, 2), upstream(2, 2, None)
    streams.note(first)
    streams.note(second)
    second.earned = (earning,)
    assert list(streams.earned()) == [(identity_of(2).peer_id, earning)]
