"""Certificates of private swarms for peers whose ids libp2p proves. Pure; times are Unix seconds."""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Final, TypeVar

from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import BadSignature, MalformedMessage, NotAMember
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_CERTIFICATE_S, MAX_RECORD_SKEW_S
from cosine_protocol.statements import check_signature, sign, unseal

# Prefixes of lines with a certificate or list.
CERTIFICATE_LINE: Final = "cosine-member:"
REVOCATIONS_LINE: Final = "cosine-revoked:"

_Body = TypeVar("_Body", m.Certificate, m.Revocations)


def sign_certificate(
    swarm: Identity, *, name: str, member: str, serial: int, starts_at_s: float, lifetime_s: float
) -> bytes:
    """The encoded certificate that `member` belongs to `swarm`, for `MAX_CERTIFICATE_S` at most."""
    ends_at_s = starts_at_s + min(lifetime_s, MAX_CERTIFICATE_S)
    certificate = m.Certificate(swarm.peer_id, name, member, serial, starts_at_s, ends_at_s)
    return encode_body(sign(swarm, certificate))


def sign_revocations(swarm: Identity, *, sequence: int, serials: Mapping[str, int]) -> bytes:
    """The encoded list of revocations. `serials` are the last revoked serial numbers by member."""
    revoked = tuple(m.Revocation(member, serial) for member, serial in serials.items())
    return encode_body(sign(swarm, m.Revocations(swarm.peer_id, sequence, revoked)))


def read_certificate(data: bytes) -> m.Certificate:
    """Decode a certificate and check its signature. Raises `NotAMember`."""
    return _open(m.Certificate, data)


def read_revocations(data: bytes) -> m.Revocations:
    """Decode a list and check its signature. Raises `NotAMember`."""
    return _open(m.Revocations, data)


def check_certificate(
    certificate: m.Certificate, *, swarm: str, member: str, now_s: float, revoked: Mapping[str, int]
) -> None:
    """Raises `NotAMember` unless a certificate shows that `member` belongs to `swarm` now.

    `revoked` holds the serial number up to which a member's certificates are revoked. A certificate counts from
    `MAX_RECORD_SKEW_S` before its start.
    """
    if certificate.swarm != swarm:
        raise NotAMember("the certificate is of another swarm")
    if certificate.member != member:
        raise NotAMember("the certificate is for another peer")
    if now_s < certificate.starts_at_s - MAX_RECORD_SKEW_S:
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
        body = decode_body(cls, signed.body)
        check_signature(cls, signed, author=body.swarm)
    except (BadSignature, MalformedMessage) as error:
        raise NotAMember(str(error)) from None
    return body
