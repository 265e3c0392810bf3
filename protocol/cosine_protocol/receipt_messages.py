"""What a verifier and a client sign of a drafter's work, and the message in which the drafter gets it."""

from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import (
    Bytes,
    ContentDigest,
    Digest,
    Items,
    Number,
    PeerId,
    Real,
    Signature,
    Struct,
    Text,
    Whole,
)

SomeTokens = Annotated[int, Whole(limits.MAX_NEW_TOKENS, 1)]


@dataclass(frozen=True, slots=True)
class Earning:
    """The body that a verifier signs: of `text_tokens` that it committed of a request, `tokens` were the drafter's.

    `client` is the request's, which said whose drafts they were. `ended_at_s` is in Unix seconds.
    """

    target_digest: ContentDigest
    client: PeerId
    drafter: PeerId
    tokens: SomeTokens
    text_tokens: SomeTokens
    ended_at_s: Annotated[float, Real(1e11)]


@dataclass(frozen=True, slots=True)
class SignedEarning:
    """An earning as it travels; `body` decodes to an `Earning`."""

    body: Annotated[bytes, Bytes(limits.MAX_EARNING_BYTES)]
    signature: Signature


EarningItems = Items(Struct(SignedEarning), limits.MAX_EARNINGS)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The body that a client signs: the earning is right by its own count. `expertise` is that of the record."""

    verifier: PeerId
    expertise: Annotated[tuple[str, ...], Items(Text(64), limits.MAX_EXPERTISE)]
    earning: Annotated[SignedEarning, Struct(SignedEarning)]


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt as it travels, for the request `d_0`; `body` decodes to a `Receipt`."""

    d_0: Digest
    body: Annotated[bytes, Bytes(limits.MAX_RECEIPT_BYTES)]
    signature: Signature


ReceiptItems = Items(Struct(SignedReceipt), limits.MAX_SHOWN_RECEIPTS)


@dataclass(frozen=True, slots=True)
class Receipted:
    """The drafter's receipt for a request that has ended."""

    number: Number
    receipt: Annotated[SignedReceipt, Struct(SignedReceipt)]
