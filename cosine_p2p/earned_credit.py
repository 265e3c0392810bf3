"""The credit that drafters have with this client by the receipts that they show. Pure; times are Unix seconds.

Verifier and client of a receipt may be one person, with as many keys as it likes. Therefore only what verifiers
signed that this client knows by its own requests counts, and of each of these and of each client only so much.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from cosine_protocol.limits import MAX_RECORD_SKEW_S
from cosine_protocol.receipts import ReadReceipt
from cosine_protocol.records import NodeRecord

MOST_TOKENS: Final = 256
"""A choice: two answers; more of one verifier, or of one client, says no more."""
LEVELS_TOKENS: Final = (64, 512)
"""Choices: the credit from which a drafter is of level 1 and 2. No one verifier or client can give the latter."""
HALF_LIFE_S: Final = 7 * 24 * 3600.0
"""A choice: as long as a client remembers speeds (`peer_speeds`)."""
MAX_DRAFTERS: Final = 1024
"""Bounds memory; those that showed theirs longest ago are forgotten first."""


class EarnedCredit:
    """The receipts of drafters whose signatures hold, as they were shown last."""

    def __init__(self) -> None:
        self._shown: OrderedDict[str, tuple[ReadReceipt, ...]] = OrderedDict()

    def note(self, drafter: str, receipts: Iterable[ReadReceipt]) -> None:
        """A drafter has shown these; what it showed before counts no longer."""
        self._shown.pop(drafter, None)
        self._shown[drafter] = tuple(receipts)
        if len(self._shown) > MAX_DRAFTERS:
            self._shown.popitem(last=False)

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
