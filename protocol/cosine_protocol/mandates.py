"""Mandates: a client's signed word that a verifier may coordinate one request. Pure; times are Unix seconds."""

from collections.abc import Sequence

from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import BadSignature, ErrorCode, MalformedMessage, PeerError
from cosine_protocol.identity import Identity, verify
from cosine_protocol.limits import MAX_MANDATE_S, MAX_RECORD_SKEW_S
from cosine_protocol.messages import Mandate, SignedMandate

KIND = "mandate"  # of the signature


def sign_mandate(
    client: Identity,
    *,
    d_0: bytes,
    delegate: str,
    drafters: Sequence[str],
    most_tokens: int,
    issued_at_s: float,
    lifetime_s: float,
    prompt_window_tokens: int | None = None,
    shares_feedback: bool = False,
    pupil: str | None = None,
) -> SignedMandate:
    """The mandate of `client` for the request `d_0`, for `MAX_MANDATE_S` at most."""
    mandate = Mandate(
        delegate,
        tuple(drafters),
        most_tokens,
        issued_at_s,
        min(lifetime_s, MAX_MANDATE_S),
        prompt_window_tokens,
        shares_feedback or None,
        pupil,
    )
    body = encode_body(mandate)
    return SignedMandate(body, client.sign(kind=KIND, digest=d_0, body=body))


def open_mandate(signed: SignedMandate, *, client: str, d_0: bytes, delegate: str, now_s: float) -> Mandate:
    """The mandate that `client` gave `delegate` for the request `d_0`, if it holds now.

    Raises `PeerError` with the code `BAD_MANDATE` if it does not.
    """
    try:
        verify(kind=KIND, signer=client, digest=d_0, body=signed.body, signature=signed.signature)
        mandate = decode_body(Mandate, signed.body)
    except (BadSignature, MalformedMessage) as error:
        raise PeerError(ErrorCode.BAD_MANDATE, str(error)) from None
    if mandate.delegate != delegate:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is for another peer")
    if mandate.issued_at_s > now_s + MAX_RECORD_SKEW_S:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate lies in the future")
    check_live(mandate, now_s=now_s)
    return mandate


def check_live(mandate: Mandate, *, now_s: float) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` if a mandate has ended."""
    if now_s > mandate.issued_at_s + mandate.lifetime_s:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate has ended")


def check_length(mandate: Mandate, tokens: int) -> None:
    """Raise `PeerError` with the code `BAD_MANDATE` for more output tokens than a mandate allows."""
    if tokens > mandate.most_tokens:
        raise PeerError(ErrorCode.BAD_MANDATE, f"the mandate ends after {mandate.most_tokens} tokens")
