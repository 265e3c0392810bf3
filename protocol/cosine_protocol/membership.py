"""Private swarms: certificates of members, lists of revoked ones, and their messages. Pure.

libp2p proves a peer's id, a certificate its membership. Times are Unix seconds.
"""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeVar

from cosine_protocol import fields as f
from cosine_protocol.errors import BadSignature, MalformedMessage, NotAMember
from cosine_protocol.identity import Identity, check_signature, sign, unseal

MAX_SWARM_NAME_BYTES: Final = 64  # The display name of a private swarm.
MAX_CERTIFICATE_BYTES: Final = 512  # Two peer ids, a name, a signature, and room for later fields.
MAX_CERTIFICATE_S: Final = 31_622_400.0  # 366 days, which also bounds the life of revocations.
MAX_REVOKED: Final = 1024  # Revoked members with unexpired certificates.
MAX_REVOCATIONS_BYTES: Final = 128 * MAX_REVOKED  # Twice the size of peer ids with serial numbers.

# Prefixes of lines with a certificate or list.
CERTIFICATE_LINE: Final = "cosine-member:"
REVOCATIONS_LINE: Final = "cosine-revoked:"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A swarm's certificate for a member. `swarm` is its peer id; `serial` grows. Times are Unix seconds."""

    KIND: ClassVar = "member"
    MAX_BYTES: ClassVar = MAX_CERTIFICATE_BYTES

    swarm: f.PeerId
    name: Annotated[str, f.Text(MAX_SWARM_NAME_BYTES)]
    member: f.PeerId
    serial: f.Number
    starts_at_s: f.Seconds
    ends_at_s: f.Seconds


@dataclass(frozen=True, slots=True)
class Revocation:
    """Certificates of this member up to this serial number are revoked."""

    member: f.PeerId
    serial: f.Number


@dataclass(frozen=True, slots=True)
class Revocations:
    """All unexpired revocations of a swarm. The list with the highest sequence is valid."""

    KIND: ClassVar = "revoked"
    MAX_BYTES: ClassVar = MAX_REVOCATIONS_BYTES

    swarm: f.PeerId
    sequence: f.Number
    revoked: Annotated[tuple[Revocation, ...], f.AtMost(MAX_REVOKED)]


@f.message(96)
class Member:
    """Sent before the hello between members: a signed `Certificate`, and the newest known sequence, or 0."""

    certificate: Annotated[bytes, f.Bytes(MAX_CERTIFICATE_BYTES)]
    revocations: f.Number


@f.message(97)
class Revoked:
    """Sent after `Member` to a peer with an older list: encoded signed `Revocations`."""

    revocations: Annotated[bytes, f.Bytes(MAX_REVOCATIONS_BYTES)]


_Body = TypeVar("_Body", Certificate, Revocations)


def sign_certificate(
    swarm: Identity, *, name: str, member: str, serial: int, starts_at_s: float, lifetime_s: float
) -> bytes:
    """The encoded certificate that `member` belongs to `swarm`, valid for at most `MAX_CERTIFICATE_S`."""
    ends_at_s = starts_at_s + min(lifetime_s, MAX_CERTIFICATE_S)
    certificate = Certificate(swarm.peer_id, name, member, serial, starts_at_s, ends_at_s)
    return f.encode_body(sign(swarm, certificate))


def sign_revocations(swarm: Identity, *, sequence: int, serials: Mapping[str, int]) -> bytes:
    """The encoded list of revocations. `serials` are the last revoked serial numbers by member."""
    revoked = tuple(Revocation(member, serial) for member, serial in serials.items())
    return f.encode_body(sign(swarm, Revocations(swarm.peer_id, sequence, revoked)))


def read_certificate(data: bytes) -> Certificate:
    """Decode a certificate and check its signature. Raises `NotAMember`."""
    return _open(Certificate, data)


def read_revocations(data: bytes) -> Revocations:
    """Decode a list and check its signature. Raises `NotAMember`."""
    return _open(Revocations, data)


def check_certificate(
    certificate: Certificate, *, swarm: str, member: str, now_s: float, revoked: Mapping[str, int]
) -> None:
    """Raise `NotAMember` unless a certificate shows that `member` belongs to `swarm` now.

    `revoked` holds the serial number up to which a member's certificates are revoked. A certificate counts from
    `MAX_RECORD_SKEW_S` before its start.
    """
    if certificate.swarm != swarm:
        raise NotAMember("the certificate is of another swarm")
    if certificate.member != member:
        raise NotAMember("the certificate is for another peer")
    if now_s < certificate.starts_at_s - f.MAX_RECORD_SKEW_S:
        raise NotAMember("the certificate is not valid yet")
    if now_s > min(certificate.ends_at_s, certificate.starts_at_s + MAX_CERTIFICATE_S):
        raise NotAMember("the certificate has expired")
    if certificate.serial <= revoked.get(member, -1):
        raise NotAMember("the certificate was revoked")


def as_line(data: bytes, *, prefix: str) -> str:
    """Signed bytes as a line of text."""
    return prefix + urlsafe_b64encode(data).decode().rstrip("=")


def from_line(line: str, *, prefix: str) -> bytes:
    """The inverse of `as_line`. Raises `NotAMember`."""
    text = line.strip().removeprefix(prefix)
    try:
        return b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    except (BadBase64, ValueError):
        raise NotAMember("the line is damaged") from None


def _open(cls: type[_Body], data: bytes) -> _Body:
    try:
        signed = unseal(cls, data)
        body = f.decode_body(cls, signed.body)
        check_signature(cls, signed, author=body.swarm)
    except (BadSignature, MalformedMessage) as error:
        raise NotAMember(str(error)) from None
    return body
