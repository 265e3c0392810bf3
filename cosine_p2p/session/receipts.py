"""The receipts that a client gives the drafters of a request once it has ended, and those that they show it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cosine_p2p.request.offload import Offload
from cosine_p2p.session.auditing import Auditing
from cosine_p2p.session.session import Session
from cosine_p2p.transport.link import PeerLinks
from cosine_p2p.trust.earned_credit import EarnedCredit
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.messages import Receipt, Receipted, SignedReceipt
from cosine_protocol.protocols import DRAFT, RECEIPTS, VERIFY
from cosine_protocol.records import NodeRecord
from cosine_protocol.statements import open_earning, read_receipt, sign_receipt

MAX_WAITING: Final = 64
"""Bounds memory and work: drafters whose receipts wait to be read, eight times those of a request."""


def give_receipts(session: Session, links: PeerLinks, mandates: Mandates | None) -> tuple[SignedReceipt, ...]:
    """Send each drafter of a finished session a receipt, without waiting; those that were sent.

    It is for what verifiers signed and this client's own count bears out. A drafter to which this client has no
    stream gets it from the verifier that coordinated, if one did.
    """
    if mandates is None:
        return ()
    given: list[SignedReceipt] = []
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
        link = links.alive(earning.drafter, DRAFT)
        if link is None and session.delegation.was_delegated:
            link = links.alive(verifier, VERIFY)
        if link is not None and RECEIPTS in (link.features or ()):
            receipt = Receipt(verifier, ledger.expertise_of(ledger.author_of(earning.drafter)), signed)
            signed_receipt = sign_receipt(mandates.identity, receipt, d_0=session.d_0)
            if link.post(Receipted(session.job.number, signed_receipt)):
                given.append(signed_receipt)
    return tuple(given)


class ShownReceipts:
    """The receipts that drafters have shown a client, and the credit that they give.

    Signatures are checked in the background, and only of what verifiers have signed that the client knows: those
    that served it, by `speeds`, or that the user names in `trust`, unless `failures` or `auditing` speaks against
    one. What holds is in `credit`.
    """

    def __init__(
        self,
        offload: Offload,
        speeds: PeerSpeeds,
        failures: PeerFailures,
        auditing: Auditing,
        *,
        trust: Collection[str] = (),
    ) -> None:
        self._offload = offload
        self._speeds = speeds
        self._failures = failures
        self._auditing = auditing
        self._trust = frozenset(trust)
        self.credit = EarnedCredit()
        self._waiting: dict[str, tuple[SignedReceipt, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, drafter: str, receipts: Sequence[SignedReceipt]) -> None:
        """A drafter shows its receipts: they are read at the next request, once their verifiers may be known."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting[drafter] = tuple(receipts)

    def read(self) -> None:
        """Begin to check what has come; what strangers signed is forgotten."""
        waiting, self._waiting = self._waiting, {}
        if waiting and (known := self._known()):
            task = asyncio.ensure_future(self._check(waiting, known))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def levels(self, drafters: Sequence[NodeRecord], *, target_digest: bytes, now_s: float) -> dict[str, int]:
        """The level of each drafter that has one above 0. `now_s` is in Unix seconds."""
        return self.credit.levels(drafters, target_digest=target_digest, known=self._known(), now_s=now_s)

    def _known(self) -> frozenset[str]:
        now_s = asyncio.get_running_loop().time()
        doubtful = self._failures.avoided(now_s) | self._auditing.convicted
        return (self._speeds.measured(now_s=now_s) | self._trust) - doubtful

    async def _check(self, shown: Mapping[str, Sequence[SignedReceipt]], known: Collection[str]) -> None:
        """Let those count whose signatures hold; of a drafter that shows a forged or broken one, none does."""
        for drafter, receipts in shown.items():
            try:
                found = [one for one in map(read_receipt, receipts) if one.verifier in known]
                for one in found:
                    await self._offload(one.check)
            except RemoteProtocolError:
                found = []
            self.credit.note(drafter, found)

    async def close(self) -> None:
        """Read what has come, so that it can be kept, and no more."""
        self.read()
        await asyncio.gather(*self._tasks, return_exceptions=True)
