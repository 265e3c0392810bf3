"""Receipts: drafted tokens of one request, signed by its verifier and countersigned by its client. Pure."""

from dataclasses import dataclass
from typing import Final

from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.identity import Identity, verify
from cosine_protocol.messages import Earning, Receipt, SignedEarning, SignedReceipt

# The kinds of the two signatures.
EARNING_KIND: Final = "earning"
RECEIPT_KIND: Final = "receipt"


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """The content of a receipt. Its signatures are worth what `check` says of them."""

    signed: SignedReceipt
    receipt: Receipt
    earning: Earning

    @property
    def verifier(self) -> str:
        return self.receipt.verifier

    @property
    def client(self) -> str:
        return self.earning.client

    def check(self) -> None:
        """Check both signatures. Raises `BadSignature`."""
        d_0, inner = self.signed.d_0, self.receipt.earning
        verify(kind=EARNING_KIND, signer=self.verifier, digest=d_0, body=inner.body, signature=inner.signature)
        outer = self.signed
        verify(kind=RECEIPT_KIND, signer=self.client, digest=d_0, body=outer.body, signature=outer.signature)


def sign_earning(verifier: Identity, earning: Earning, *, d_0: bytes) -> SignedEarning:
    """The account of one drafter's tokens in the request `d_0`, signed by the verifier that committed them."""
    body = encode_body(earning)
    return SignedEarning(body, verifier.sign(kind=EARNING_KIND, digest=d_0, body=body))


def open_earning(signed: SignedEarning, *, verifier: str, d_0: bytes) -> Earning:
    """The account that `verifier` signed. Raises `BadSignature` and `MalformedMessage`."""
    verify(kind=EARNING_KIND, signer=verifier, digest=d_0, body=signed.body, signature=signed.signature)
    return decode_body(Earning, signed.body)


def sign_receipt(client: Identity, receipt: Receipt, *, d_0: bytes) -> SignedReceipt:
    """A verifier's account, countersigned by the client of the request `d_0`."""
    body = encode_body(receipt)
    return SignedReceipt(d_0, body, client.sign(kind=RECEIPT_KIND, digest=d_0, body=body))


def read_receipt(signed: SignedReceipt) -> ReadReceipt:
    """What a receipt says, its signatures not checked yet.

    Raises `MalformedMessage`, also where two of the three peers are one, or more was drafted than committed.
    """
    receipt = decode_body(Receipt, signed.body)
    earning = decode_body(Earning, receipt.earning.body)
    if len({receipt.verifier, earning.client, earning.drafter}) < 3:
        raise MalformedMessage("a receipt needs three peers")
    if earning.tokens > earning.text_tokens:
        raise MalformedMessage("a receipt is for more tokens than were committed")
    return ReadReceipt(signed, receipt, earning)
