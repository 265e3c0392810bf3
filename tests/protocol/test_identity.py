"""Identities equal libp2p's, and signatures are bound to kind, signer, request and body."""

from typing import Any

import pytest

from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import Identity, peer_id_of, public_key_of, verify
from tests.protocol.samples import OTHER, OWNER, SPEC_SEED

# The key pair of the libp2p peer id specification; its peer id is what go-libp2p prints for it.
SPEC_KEY_FILE = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
SPEC_PEER_ID = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
SIGNED: dict[str, Any] = {"kind": "fragment", "digest": bytes(range(16)), "body": b"body"}


def test_an_identity_and_its_file_are_those_of_libp2p_and_its_key_is_not_shown() -> None:
    identity = Identity.from_file_bytes(SPEC_KEY_FILE)
    assert identity.peer_id == Identity.from_seed(SPEC_SEED).peer_id == SPEC_PEER_ID
    assert identity.to_file_bytes() == SPEC_KEY_FILE
    assert public_key_of(SPEC_PEER_ID) == SPEC_KEY_FILE[-32:]
    assert peer_id_of(SPEC_KEY_FILE[-32:]) == SPEC_PEER_ID
    assert repr(OWNER) == f"Identity({OWNER.peer_id})"
    generated = Identity.generate()
    assert Identity.from_file_bytes(generated.to_file_bytes()).sign(**SIGNED) == generated.sign(**SIGNED)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SPEC_KEY_FILE[:-1],
        SPEC_KEY_FILE + b"\0",
        b"\x08\x00" + SPEC_KEY_FILE[2:],
        SPEC_KEY_FILE[:-1] + b"\0",
        SPEC_KEY_FILE[:4] + bytes(32) + SPEC_KEY_FILE[36:],
    ],
    ids=["empty", "cut", "longer", "another type", "public key", "private key"],
)
def test_a_damaged_key_file_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^The identity file [^.]*\.$"):
        Identity.from_file_bytes(data)


@pytest.mark.parametrize(
    "peer_id",
    [
        "",
        "0OIl",
        "\ud800",
        SPEC_PEER_ID[:-1],
        SPEC_PEER_ID + "1",
        SPEC_PEER_ID + " ",
        SPEC_PEER_ID + "\n",
        "QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC",
        "z" * 100_000,
    ],
)
def test_what_is_no_ed25519_peer_id_is_refused(peer_id: str) -> None:
    with pytest.raises(BadSignature):
        public_key_of(peer_id)


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "final"), ("digest", bytes(16)), ("body", b"bodY"), ("signer", OTHER.peer_id)],
)
def test_a_signature_holds_as_made_and_for_nothing_else(name: str, value: Any) -> None:
    said = {"signer": OWNER.peer_id, **SIGNED}
    verify(signature=OWNER.sign(**SIGNED), **said)
    with pytest.raises(BadSignature, match="does not match"):
        verify(signature=OWNER.sign(**SIGNED), **said | {name: value})
