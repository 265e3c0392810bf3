"""The receipts that a client gives the drafters of a request once it has ended."""

from collections.abc import Iterator

from cosine_p2p.link import PeerLinks
from cosine_p2p.mandates import Mandates
from cosine_p2p.session import Session
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.protocols import DRAFT, RECEIPTS, VERIFY
from cosine_protocol.receipt_messages import Receipt, Receipted, SignedReceipt
from cosine_protocol.receipts import open_earning, sign_receipt


def give_receipts(session: Session, links: PeerLinks, mandates: Mandates | None) -> int:
    """Send each drafter of a finished session its receipt, without waiting; the number sent.

    A drafter to which this client has no stream gets it from the verifier that coordinated, if one did.
    """
    given = 0
    for verifier, drafter, receipt in _receipts_of(session, mandates):
        link = links.alive(drafter, DRAFT)
        if link is None and session.delegation.was_delegated:
            link = links.alive(verifier, VERIFY)
        if link is not None and RECEIPTS in (link.features or ()):
            given += link.post(Receipted(session.job.number, receipt))
    return given


def _receipts_of(session: Session, mandates: Mandates | None) -> Iterator[tuple[str, str, SignedReceipt]]:
    """Verifier, drafter and receipt for what verifiers signed and this client's own count bears out."""
    if mandates is None:
        return
    request, ledger = session.job.request, session.ledger
    unpaid = {drafter: ledger.accepted(author) for author, drafter in enumerate(ledger.peer_ids, start=1)}
    for verifier, signed in session.signed.earned():
        try:
            earning = open_earning(signed, verifier=verifier, d_0=session.d_0)
        except RemoteProtocolError:
            continue
        is_of_request = (earning.client, earning.target_digest) == (request.client, request.target_digest)
        if not is_of_request or earning.tokens > unpaid.get(earning.drafter, 0):
            continue
        unpaid[earning.drafter] -= earning.tokens
        expertise = ledger.expertise_of(ledger.author_of(earning.drafter))
        receipt = Receipt(verifier, expertise, signed)
        yield verifier, earning.drafter, sign_receipt(mandates.identity, receipt, d_0=session.d_0)
