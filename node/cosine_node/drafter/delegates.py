"""Peers that a drafter follows in the place of a request's client, by its mandate. Pure."""

from collections.abc import Container

from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.mandate_messages import Mandate
from cosine_protocol.mandates import check_length, check_live, open_mandate


def shown_mandate(
    message: m.Start, peer_id: str, *, d_0: bytes, drafter: str, in_use: Container[bytes], now_s: float
) -> Mandate | None:
    """The mandate by which the peer stands in for the client of the request `d_0`; None for the client itself.

    One mandate is good for one place at a time: `in_use` holds the digests of the requests that this drafter
    follows for the peer. Raises `PeerError` if there is none that holds.
    """
    client = message.request.client
    if client == peer_id:
        return None
    if message.mandate is None:
        raise PeerError(ErrorCode.MALFORMED, "the request does not fit its stream")
    mandate = open_mandate(message.mandate, client=client, d_0=d_0, delegate=peer_id, now_s=now_s)
    check_length(mandate, len(message.committed))
    if drafter not in mandate.drafters:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate does not name this drafter")
    window_tokens = mandate.prompt_window_tokens
    if window_tokens is not None and len(message.request.prompt) > window_tokens:
        raise PeerError(ErrorCode.BAD_MANDATE, "the prompt is longer than the mandate's window")
    if d_0 in in_use:
        raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is in use already")
    return mandate


def may_keep_text(message: m.Start, mandate: Mandate | None) -> bool:
    """True if the client lets the drafter keep the text; of a delegate, the mandate's word counts alone."""
    return bool((message if mandate is None else mandate).shares_feedback)


def check_use(mandate: Mandate | None, message: m.Assign | m.Advance | m.Release, *, now_s: float) -> None:
    """Raise `PeerError` if a message goes past the end or the tokens of a mandate; to release is always allowed."""
    if mandate is None or isinstance(message, m.Release):
        return
    check_live(mandate, now_s=now_s)
    if isinstance(message, m.Advance):
        check_length(mandate, message.position + len(message.tokens))
