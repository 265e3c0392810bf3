"""The credit that drafters have with this client by the receipts that they show. Pure; times are Unix seconds.

Verifier and client of a receipt may be one person, with as many keys as it likes. Therefore only what verifiers
signed that this client knows by its own requests counts, and of each of these and of each client only so much.
"""

import base64
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.limits import MAX_RECORD_SKEW_S, MAX_SHOWN_RECEIPTS
from cosine_protocol.messages import SignedReceipt
from cosine_protocol.records import NodeRecord
from cosine_protocol.statements import ReadReceipt, read_receipt

MOST_TOKENS: Final = 256
"""Two answers; more of one verifier, or of one client, says no more."""
LEVELS_TOKENS: Final = (64, 512)
"""The credit from which a drafter is of level 1 and 2. No one verifier or client can give the latter."""
HALF_LIFE_S: Final = 7 * 24 * 3600.0
"""As long as a client remembers speeds (`PeerSpeeds`)."""
MAX_DRAFTERS: Final = 1024
"""Bounds memory."""
KEPT_DRAFTERS: Final = 256
"""Bounds the file at 1 MiB, with 500 bytes a receipt; those that showed theirs last are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """The tokens of a drafter that count by the receipts it has shown, and how many peers signed them."""

    tokens: int
    verifiers: int
    clients: int


class EarnedCredit:
    """The receipts of drafters whose signatures hold, as they were shown last."""

    def __init__(self) -> None:
        self._shown = Remembered[str, tuple[ReadReceipt, ...]](MAX_DRAFTERS)

    def note(self, drafter: str, receipts: Iterable[ReadReceipt]) -> None:
        """A drafter has shown these; what it showed before counts no longer."""
        self._shown.note(drafter, tuple(receipts))

    def earned(self) -> dict[str, Earned]:
        """The sums of the receipts of each drafter that has shown any which hold."""
        found = {}
        for drafter, shown in self._shown.items():
            if once := {(one.signed.d_0, one.verifier): one for one in shown}:
                found[drafter] = Earned(
                    tokens=sum(one.earning.tokens for one in once.values()),
                    verifiers=len({one.verifier for one in once.values()}),
                    clients=len({one.client for one in once.values()}),
                )
        return found

    def state(self) -> list[list[Any]]:
        """The receipts of drafters as values of JSON: [peer id, receipts in base64]."""
        return [
            [drafter, [base64.b64encode(encode_body(one.signed)).decode("ascii") for one in shown]]
            for drafter, shown in [entry for entry in self._shown.items() if entry[1]][-KEPT_DRAFTERS:]
        ]

    def restore(self, states: Any) -> None:
        """Take in the receipts that an earlier process has checked and kept; what is broken is left out."""
        for state in states[-KEPT_DRAFTERS:] if isinstance(states, list) else ():
            match state:
                case [str(drafter), list(texts)]:
                    self.note(drafter, filter(None, map(_kept_receipt, texts[:MAX_SHOWN_RECEIPTS])))

    def levels(
        self, drafters: Sequence[NodeRecord], *, target_digest: bytes, known: Collection[str], now_s: float
    ) -> dict[str, int]:
        """The level of each drafter that has one above 0, by receipts of `known` verifiers for this target."""
        levels = {}
        for record in drafters:
            if shown := self._shown.get(record.peer_id):
                fitting = [
                    one
                    for one in shown
                    if one.earning.drafter == record.peer_id
                    and one.earning.target_digest == target_digest
                    and one.receipt.expertise == record.expertise
                    and one.verifier in known
                ]
                credit = credit_of(fitting, now_s=now_s)
                if level := sum(credit >= least for least in LEVELS_TOKENS):
                    levels[record.peer_id] = level
        return levels


def _kept_receipt(text: Any) -> ReadReceipt | None:
    try:
        return read_receipt(decode_body(SignedReceipt, base64.b64decode(text, validate=True)))
    except (TypeError, ValueError, MalformedMessage):
        return None


def credit_of(receipts: Iterable[ReadReceipt], *, now_s: float) -> float:
    """Tokens, fewer with their age, at most `MOST_TOKENS` of any verifier and of any client.

    The receipts of one request and verifier count once, those from the future not at all.
    """
    by_verifier: defaultdict[str, float] = defaultdict(float)
    by_client: defaultdict[str, float] = defaultdict(float)
    seen: set[tuple[bytes, str]] = set()
    credit = 0.0
    for one in receipts:
        age_s = now_s - one.earning.ended_at_s
        key = (one.signed.d_0, one.verifier)
        if key in seen or age_s < -MAX_RECORD_SKEW_S:
            continue
        seen.add(key)
        tokens = one.earning.tokens * 0.5 ** (max(0.0, age_s) / HALF_LIFE_S)
        room = MOST_TOKENS - max(by_verifier[one.verifier], by_client[one.client])
        counted = max(0.0, min(tokens, room))
        by_verifier[one.verifier] += counted
        by_client[one.client] += counted
        credit += counted
    return credit
