"""The receipts that a drafter has earned: checked when they come, kept within bounds and between runs."""

import base64
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.storage.state_file import StateFile
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import MalformedMessage, RemoteProtocolError
from cosine_protocol.limits import MAX_RECORD_SKEW_S
from cosine_protocol.messages import SignedReceipt
from cosine_protocol.request import Request
from cosine_protocol.statements import ReadReceipt, read_receipt

MAX_KEPT: Final = 256
"""Bounds the file at some 150 KiB."""
MAX_FILE_BYTES: Final = 1 << 20
"""Above `MAX_KEPT` of the longest receipts: a larger file is not ours."""
MAX_EXPECTED: Final = 256
"""Bounds memory: requests followed lately, for each of which one receipt may come."""
LATE_S: Final = 120.0
"""A receipt comes within moments of the request's end; both clocks may be off."""
HALF_LIFE_S: Final = 7 * 24 * 3600.0
"""What was earned in a week that is past counts half."""
WRITE_EVERY_S: Final = 60.0
"""A node that is killed loses what it earned in its last minute."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earnings:
    """What a drafter has receipts for: since it began, and how many peers signed those that it still keeps."""

    tokens: int
    receipts: int
    verifiers: int
    clients: int


class ReceiptLedger:
    """The receipts of one drafter, `kept` from the oldest on. `clock` gives Unix seconds.

    `expertise` is that of its record. Without a `file` nothing is kept between runs.
    """

    def __init__(
        self,
        drafter: str,
        *,
        expertise: tuple[str, ...],
        clock: Callable[[], float],
        file: StateFile | None = None,
    ) -> None:
        self._drafter = drafter
        self._expertise = expertise
        # Receipts for work before others were announced come later.
        self._announced = {expertise}
        self._clock = clock
        self._file = file
        self._written_s = clock()
        # Requests followed, and nodes sent for each. By client too: one may have shown the end of a prompt only,
        # under the digest of another's request.
        self._expected: Remembered[tuple[str, bytes], tuple[Request, int]] = Remembered(MAX_EXPECTED)
        self.kept: list[ReadReceipt] = []
        self._tokens = 0
        self._receipts = 0
        if file is not None:
            self._restore(file.read())

    @property
    def domain(self) -> str:
        """The domains of the drafter, as people read them."""
        return ",".join(self._expertise)

    def announce(self, expertise: tuple[str, ...]) -> None:
        """The record says other domains from here on."""
        self._expertise = expertise
        self._announced.add(expertise)

    def earnings(self) -> Earnings:
        """What was earned so far."""
        return Earnings(
            tokens=self._tokens,
            receipts=self._receipts,
            verifiers=len({one.verifier for one in self.kept}),
            clients=len({one.client for one in self.kept}),
        )

    def expect(self, request: Request, d_0: bytes, *, sent_nodes: int) -> None:
        """A request was followed, and `sent_nodes` sent for it: its client may send a receipt."""
        known = self._expected.get((request.client, d_0))
        self._expected.note((request.client, d_0), (request, sent_nodes + (known[1] if known else 0)))

    def take(self, signed: SignedReceipt) -> int:
        """Keep a receipt if it is one for a request that was followed; its tokens, 0 if it is not.

        A request is good for one attempt, so that signatures are checked once a request at most.
        """
        try:
            one = read_receipt(signed)
            expected = self._expected.pop((one.client, signed.d_0))
            if expected is None:
                return 0
            self._compare(one, *expected)
            one.check()
        except RemoteProtocolError as error:
            LOG.info("a receipt is refused: %s", error)
            return 0
        self._tokens += one.earning.tokens
        self._receipts += 1
        self.keep(one)
        if self._clock() - self._written_s >= WRITE_EVERY_S:
            self.write()
        return one.earning.tokens

    def _compare(self, one: ReadReceipt, request: Request, sent_nodes: int) -> None:
        """Raise `MalformedMessage` where a receipt is not about the drafter's own work for a request."""
        earning = one.earning
        if (earning.drafter, one.client) != (self._drafter, request.client):
            raise MalformedMessage("it is of other peers")
        if earning.target_digest != request.target_digest or one.receipt.expertise not in self._announced:
            raise MalformedMessage("it is for another target or expertise")
        if earning.tokens > sent_nodes or earning.text_tokens > request.max_new_tokens:
            raise MalformedMessage("it is for more than was drafted or asked for")
        if not -LATE_S <= earning.ended_at_s - self._clock() <= MAX_RECORD_SKEW_S:
            raise MalformedMessage("its time is not now")

    def keep(self, one: ReadReceipt) -> None:
        """Add a receipt that holds; of too many, the one worth least goes of the verifier that signed most of them.

        So one verifier, with however many clients, cannot push out what others have signed.
        """
        self.kept.append(one)
        if len(self.kept) > MAX_KEPT:
            most = Counter(kept.verifier for kept in self.kept).most_common(1)[0][0]
            now_s = self._clock()
            self.kept.remove(
                min((kept for kept in self.kept if kept.verifier == most), key=lambda kept: worth(kept, now_s))
            )

    def best(self, count: int) -> tuple[SignedReceipt, ...]:
        """The receipts to show: of each verifier in turn the one worth most, of different clients where it can."""
        now_s = self._clock()
        left = sorted(self.kept, key=lambda one: -worth(one, now_s))
        verifiers: Counter[str] = Counter()
        clients: Counter[str] = Counter()
        shown: list[SignedReceipt] = []
        while left and len(shown) < count:
            chosen = min(left, key=lambda one: (verifiers[one.verifier], clients[one.client]))
            left.remove(chosen)
            verifiers[chosen.verifier] += 1
            clients[chosen.client] += 1
            shown.append(chosen.signed)
        return tuple(shown)

    def write(self) -> None:
        """Keep all for the next run."""
        self._written_s = self._clock()
        if self._file is not None:
            receipts = [base64.b64encode(encode_body(one.signed)).decode("ascii") for one in self.kept]
            self._file.write({"tokens": self._tokens, "count": self._receipts, "receipts": receipts})

    def _restore(self, value: dict[str, Any]) -> None:
        match value:
            case {"tokens": int(tokens), "count": int(count), "receipts": list(receipts)}:
                self._tokens, self._receipts = max(0, tokens), max(0, count)
                for text in receipts[-MAX_KEPT:]:
                    try:
                        signed = decode_body(SignedReceipt, base64.b64decode(text, validate=True))
                        self.kept.append(read_receipt(signed))
                    except (TypeError, ValueError, MalformedMessage):
                        continue


def worth(one: ReadReceipt, now_s: float) -> float:
    """The tokens of a receipt, fewer with its age."""
    age_s = max(0.0, now_s - one.earning.ended_at_s)
    return float(one.earning.tokens * 0.5 ** (age_s / HALF_LIFE_S))


def ledger_of(drafter: str, expertise: tuple[str, ...]) -> ReceiptLedger:
    """The ledger of a drafter that runs here, with its file in the state folder."""
    file = StateFile(f"receipts-{drafter[-12:]}.json", max_bytes=MAX_FILE_BYTES)
    return ReceiptLedger(drafter, expertise=expertise, clock=time.time, file=file)
