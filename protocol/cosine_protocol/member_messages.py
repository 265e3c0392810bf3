"""What members of a private swarm show each other: signed certificates, and signed lists of revoked ones."""

from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Bytes, Items, Number, PeerId, Real, Signature, Struct, Text


@dataclass(frozen=True, slots=True)
class Certificate:
    """The word of a swarm that a peer is its member for a while. Times are Unix seconds.

    `swarm` is the swarm's public key in the form of a peer id, `name` is for people. `serial` grows with each
    certificate of the swarm, so that a list can revoke those there are and no later ones.
    """

    swarm: PeerId
    name: Annotated[str, Text(limits.MAX_SWARM_NAME_BYTES)]
    member: PeerId
    serial: Number
    starts_at_s: Annotated[float, Real(1e11)]
    ends_at_s: Annotated[float, Real(1e11)]


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """A certificate as signed by its swarm."""

    body: Annotated[bytes, Bytes(limits.MAX_CERTIFICATE_BYTES)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Revocation:
    """No certificate of this member counts up to this serial number."""

    member: PeerId
    serial: Number


@dataclass(frozen=True, slots=True)
class Revocations:
    """All that a swarm has revoked and that has not ended by itself; the list of the highest sequence counts."""

    swarm: PeerId
    sequence: Number
    revoked: Annotated[tuple[Revocation, ...], Items(Struct(Revocation), limits.MAX_REVOKED)]


@dataclass(frozen=True, slots=True)
class SignedRevocations:
    """A list as signed by its swarm."""

    body: Annotated[bytes, Bytes(limits.MAX_REVOCATIONS_BYTES)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class Member:
    """First on every stream between members, before the hello, both ways: an encoded `SignedCertificate`.

    `revocations` is the sequence of the newest list that the sender knows, 0 for none.
    """

    certificate: Annotated[bytes, Bytes(limits.MAX_CERTIFICATE_BYTES)]
    revocations: Number


@dataclass(frozen=True, slots=True)
class Revoked:
    """After `Member` to a peer that knows an older list: an encoded `SignedRevocations`."""

    revocations: Annotated[bytes, Bytes(limits.MAX_REVOCATIONS_BYTES)]
