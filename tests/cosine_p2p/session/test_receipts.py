"""A client countersigns what agrees with its own count, and sends it to whom it has a stream with."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cosine_p2p.session.auditing import Auditing
from cosine_p2p.session.drafters import DrafterLedger
from cosine_p2p.session.receipts import ShownReceipts, give_receipts
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import SignedStreams, Upstream
from cosine_p2p.trust.earned_credit import Earned
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_p2p.trust.standing import Standings
from cosine_protocol.digests import request_digest
from cosine_protocol.messages import Earning, Message, Receipt, Receipted, SignedEarning, SignedReceipt
from cosine_protocol.protocols import DRAFT, RECEIPTS, VERIFY
from cosine_protocol.statements import read_receipt, sign_earning, sign_receipt
from tests.cosine_p2p.samples import identity_of, record_of
from tests.protocol.samples import NOW_S, request_of

CLIENT, VERIFIER, DRAFTER, OTHER = map(identity_of, (1, 2, 3, 4))
REQUEST = request_of(client=CLIENT.peer_id)
D_0 = request_digest(REQUEST)


def earning(tokens: int = 3, *, signer: Any = VERIFIER, d_0: bytes = D_0, **changes: Any) -> SignedEarning:
    facts: dict[str, Any] = {
        "target_digest": REQUEST.target_digest,
        "client": CLIENT.peer_id,
        "drafter": DRAFTER.peer_id,
        "tokens": tokens,
        "text_tokens": 9,
        "ended_at_s": NOW_S,
    }
    return sign_earning(signer, Earning(**(facts | changes)), d_0=d_0)


class Links:
    """The links to some (peer, protocol), with what was sent to each."""

    def __init__(self, *alive: tuple[str, str], features: frozenset[str] | None = frozenset({RECEIPTS})) -> None:
        self._alive = alive
        self._features = features
        self.sent: list[tuple[str, Message]] = []

    def alive(self, peer_id: str, protocol: str) -> Any:
        def post(message: Message) -> bool:
            self.sent.append((peer_id, message))
            return True

        return SimpleNamespace(features=self._features, post=post) if (peer_id, protocol) in self._alive else None


def session(*earned: SignedEarning, was_delegated: bool = False) -> Session:
    """One that has ended, with 3 tokens of the drafter and 2 of the other by the client's own count."""
    records = [SimpleNamespace(peer_id=one.peer_id, expertise=("code",), model="") for one in (DRAFTER, OTHER)]
    ledger = DrafterLedger(cast("Any", records))
    ledger.credit([1, 1, 2, 0, 1, 2])
    signed = SignedStreams()
    signed.note(cast("Upstream", SimpleNamespace(peer_id=VERIFIER.peer_id, first=0, earned=earned)))
    job = SimpleNamespace(number=5, request=REQUEST)
    delegation = SimpleNamespace(was_delegated=was_delegated)
    made: Any = SimpleNamespace(job=job, d_0=D_0, ledger=ledger, signed=signed, delegation=delegation)
    return cast("Session", made)


def given(ended: Session, links: Any, mandates: Mandates | None = None) -> int:
    return len(give_receipts(ended, links, mandates or Mandates(CLIENT, lambda: NOW_S)))


def test_a_drafter_gets_what_both_count() -> None:
    links = Links((DRAFTER.peer_id, DRAFT), (OTHER.peer_id, DRAFT))
    assert given(session(earning(), earning(2, drafter=OTHER.peer_id)), links) == 2
    for (peer_id, message), drafter in zip(links.sent, (DRAFTER, OTHER), strict=True):
        assert isinstance(message, Receipted) and peer_id == drafter.peer_id
        one = read_receipt(message.receipt)
        one.check()
        assert (one.client, one.verifier, one.earning.drafter) == (CLIENT.peer_id, VERIFIER.peer_id, peer_id)
        assert one.receipt.expertise == ("code",)


@pytest.mark.parametrize(
    "signed",
    [
        earning(4),
        earning(signer=OTHER),
        earning(d_0=bytes(16)),
        earning(client=OTHER.peer_id),
        earning(target_digest=bytes(32)),
        earning(drafter=identity_of(9).peer_id),
        SignedEarning(b"?", bytes(64)),
    ],
)
def test_nothing_else_is_countersigned(signed: SignedEarning) -> None:
    links = Links((DRAFTER.peer_id, DRAFT))
    assert given(session(signed), links) == 0
    assert not links.sent


def test_no_token_is_countersigned_twice() -> None:
    links = Links((DRAFTER.peer_id, DRAFT))
    assert given(session(earning(2), earning(2), earning(1)), links) == 2


def test_where_the_verifier_coordinated_it_passes_them_on() -> None:
    links = Links((VERIFIER.peer_id, VERIFY))
    assert given(session(earning(), was_delegated=True), links) == 1
    assert [peer_id for peer_id, _ in links.sent] == [VERIFIER.peer_id]
    assert given(session(earning()), Links((VERIFIER.peer_id, VERIFY))) == 0


@pytest.mark.parametrize("features", [None, frozenset[str]()])
def test_who_knows_no_receipts_gets_none(features: frozenset[str] | None) -> None:
    assert given(session(earning()), Links((DRAFTER.peer_id, DRAFT), features=features)) == 0


def test_a_client_without_a_key_signs_nothing() -> None:
    assert give_receipts(session(earning()), cast("Any", Links((DRAFTER.peer_id, DRAFT))), None) == ()


def signed(number: int = 0, *, forged: bool = False, verifier: Any = VERIFIER) -> SignedReceipt:
    """A receipt of 100 tokens; a forged one is signed by the drafter in its client's name."""
    d_0 = number.to_bytes(16)
    inner = earning(100, d_0=d_0, signer=verifier, text_tokens=100)
    return sign_receipt(DRAFTER if forged else CLIENT, Receipt(verifier.peer_id, ("code",), inner), d_0=d_0)


def levels(receipts: Sequence[SignedReceipt], *, failed: bool = False, **options: Any) -> tuple[int, int]:
    """The level of a drafter that shows these to a client that has measured the verifier, and the checks made."""
    checks = 0

    async def offload(check: Callable[[], None]) -> None:
        nonlocal checks
        checks += 1
        check()

    async def run() -> int:
        speeds, failures = PeerSpeeds(), PeerFailures()
        now_s = asyncio.get_running_loop().time()
        speeds.note_pass(VERIFIER.peer_id, 0.1, now_s=now_s)
        if failed:
            failures.note_failed(VERIFIER.peer_id, now_s=now_s)
        shown = ShownReceipts(offload, speeds, failures, Auditing(failures, Standings()), **options)
        shown.take(DRAFTER.peer_id, receipts)
        shown.read()
        await asyncio.sleep(0.01)
        record = record_of(DRAFTER, now_s=0.0, expertise=("code",))
        found = shown.levels([record], target_digest=REQUEST.target_digest, now_s=NOW_S)
        await shown.close()
        return found.get(DRAFTER.peer_id, 0)

    return asyncio.run(run()), checks


def test_what_a_drafter_shows_counts_once_it_is_checked() -> None:
    assert levels([signed(0), signed(1)]) == (1, 2)


def test_of_one_that_shows_something_forged_nothing_counts() -> None:
    assert levels([signed(0), signed(1, forged=True)])[0] == 0
    assert levels([signed(0), replace(signed(1), body=b"")]) == (0, 0)


def test_strangers_receipts_are_not_even_checked() -> None:
    assert levels([signed(verifier=OTHER)]) == (0, 0)
    assert levels([signed(verifier=OTHER)], trust=[OTHER.peer_id]) == (1, 1)


def test_nor_those_of_a_verifier_in_doubt() -> None:
    assert levels([signed()], failed=True) == (0, 0)


def test_what_was_shown_last_is_read_before_the_end_so_that_it_can_be_kept() -> None:
    async def run() -> dict[str, Earned]:
        async def offload(check: Callable[[], None]) -> None:
            check()

        speeds, failures = PeerSpeeds(), PeerFailures()
        speeds.note_pass(VERIFIER.peer_id, 0.1, now_s=asyncio.get_running_loop().time())
        shown = ShownReceipts(offload, speeds, failures, Auditing(failures, Standings()))
        shown.take(DRAFTER.peer_id, [signed(0), signed(1)])
        shown.take(OTHER.peer_id, [signed(2, forged=True)])
        await shown.close()
        return shown.credit.earned()

    assert asyncio.run(run()) == {DRAFTER.peer_id: Earned(tokens=200, verifiers=1, clients=1)}
