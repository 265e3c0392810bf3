"""Certificates and revocations of private swarms."""

from collections.abc import Mapping
from typing import Any

import pytest

from cosine_protocol.errors import NotAMember
from cosine_protocol.fields import MAX_PEER_ID_BYTES, MAX_RECORD_SKEW_S, MAX_REQUEST_NUMBER, encode_body
from cosine_protocol.identity import Identity, Signed, unseal
from cosine_protocol.membership import (
    MAX_CERTIFICATE_BYTES,
    MAX_CERTIFICATE_S,
    MAX_REVOCATIONS_BYTES,
    MAX_REVOKED,
    MAX_SWARM_NAME_BYTES,
    Certificate,
    Revocation,
    Revocations,
    check_certificate,
    read_certificate,
    read_revocations,
    sign_certificate,
    sign_revocations,
)
from tests.protocol.samples import LIFETIME_S, NOW_S, OTHER, OWNER, SWARM

MEMBER, STRANGER = OWNER, OTHER
OTHER_SWARM = Identity.from_seed(b"\x07" * 32)
SERIAL = 7
NOBODY: Mapping[str, int] = {}


def signed(swarm: Identity = SWARM, **changes: Any) -> bytes:
    facts: dict[str, Any] = {"name": "friends", "member": MEMBER.peer_id, "serial": SERIAL, "starts_at_s": NOW_S}
    return sign_certificate(swarm, **({"lifetime_s": LIFETIME_S} | facts | changes))


def check(
    data: bytes, *, member: str = MEMBER.peer_id, now_s: float = NOW_S, revoked: Mapping[str, int] = NOBODY
) -> Certificate:
    certificate = read_certificate(data)
    check_certificate(certificate, swarm=SWARM.peer_id, member=member, now_s=now_s, revoked=revoked)
    return certificate


def test_a_certificate_counts_from_its_start_to_its_end_and_a_later_one_of_a_revoked_member_too() -> None:
    expected = Certificate(SWARM.peer_id, "friends", MEMBER.peer_id, SERIAL, NOW_S, NOW_S + LIFETIME_S)
    assert check(signed()) == check(signed(), now_s=NOW_S + LIFETIME_S) == expected
    assert check(signed(), now_s=NOW_S - MAX_RECORD_SKEW_S) == expected
    check(signed(serial=SERIAL + 1), revoked={MEMBER.peer_id: SERIAL})
    check(signed(), revoked={STRANGER.peer_id: SERIAL})


@pytest.mark.parametrize(
    ("data", "changes", "reason"),
    [
        (signed(), {"now_s": NOW_S + LIFETIME_S + 1}, "has expired"),
        (signed(), {"now_s": NOW_S - MAX_RECORD_SKEW_S - 1}, "not valid yet"),
        (signed(), {"member": STRANGER.peer_id}, "for another peer"),
        (signed(OTHER_SWARM), {}, "of another swarm"),
        (signed(), {"revoked": {MEMBER.peer_id: SERIAL}}, "was revoked"),
        (signed(), {"revoked": {MEMBER.peer_id: SERIAL + 1}}, "was revoked"),
    ],
)
def test_it_counts_for_no_other_time_peer_or_swarm(data: bytes, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotAMember, match=reason):
        check(data, **changes)


def test_no_certificate_lasts_for_ever() -> None:
    assert check(signed(lifetime_s=1e10)).ends_at_s == NOW_S + MAX_CERTIFICATE_S
    body = encode_body(Certificate(SWARM.peer_id, "", MEMBER.peer_id, SERIAL, NOW_S, 1e11))
    endless = encode_body(Signed(body, SWARM.sign(kind="member", digest=b"", body=body)))
    with pytest.raises(NotAMember, match="expired"):
        check(endless, now_s=NOW_S + MAX_CERTIFICATE_S + 1)


def test_nobody_else_signs_for_a_swarm() -> None:
    body = unseal(Certificate, signed()).body
    for signer in (STRANGER, MEMBER, OTHER_SWARM):
        forged = encode_body(Signed(body, signer.sign(kind="member", digest=b"", body=body)))
        with pytest.raises(NotAMember, match="signature"):
            read_certificate(forged)
    # A list is no certificate, whoever signs it.
    other_kind = encode_body(Signed(body, SWARM.sign(kind="revoked", digest=b"", body=body)))
    with pytest.raises(NotAMember, match="signature"):
        read_certificate(other_kind)


def test_a_list_says_up_to_which_serial_certificates_are_revoked_and_the_longest_things_have_room() -> None:
    data = sign_revocations(SWARM, sequence=3, serials={MEMBER.peer_id: 5})
    assert read_revocations(data) == Revocations(SWARM.peer_id, 3, (Revocation(MEMBER.peer_id, 5),))
    with pytest.raises(NotAMember):
        read_revocations(data[:-1] + bytes([data[-1] ^ 1]))
    longest = signed(name="x" * MAX_SWARM_NAME_BYTES, serial=MAX_REQUEST_NUMBER)
    assert len(longest) <= MAX_CERTIFICATE_BYTES
    serials = {f"{n:0{MAX_PEER_ID_BYTES}}": MAX_REQUEST_NUMBER for n in range(MAX_REVOKED)}
    assert len(sign_revocations(SWARM, sequence=1, serials=serials)) <= MAX_REVOCATIONS_BYTES
