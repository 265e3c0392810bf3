"""Ed25519 identities equal to libp2p peer ids, and detached signatures bound to a request.

Key files hold libp2p's PrivateKey protobuf {Type = Ed25519, Data = seed || public key}; a peer id is the base58 of
the identity multihash of the public key protobuf (libp2p specs, "Peer Ids and Keys").
"""

from typing import Final

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.limits import MAX_PEER_ID_BYTES

# The protobufs of libp2p keys and the identity multihash, without what differs between keys.
_PRIVATE_PREFIX: Final = b"\x08\x01\x12\x40"
_PEER_PREFIX: Final = b"\x00\x24\x08\x01\x12\x20"
_KEY_BYTES: Final = 32


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id of a raw 32-byte Ed25519 public key."""
    return str(base58.b58encode(_PEER_PREFIX + public_key), "ascii")


def public_key_of(peer_id: str) -> bytes:
    """The raw Ed25519 public key inside a peer id. Raises `BadSignature` if it holds none."""
    if len(peer_id) > MAX_PEER_ID_BYTES:
        raise BadSignature(f"a peer id of {len(peer_id)} characters is too long")
    try:
        raw = bytes(base58.b58decode(peer_id))
    except ValueError:
        raise BadSignature(f"{peer_id!r} is not a peer id") from None
    public_key = raw[len(_PEER_PREFIX) :]
    # base58 ignores space at the end, so one key would own many ids.
    if len(public_key) != _KEY_BYTES or peer_id_of(public_key) != peer_id:
        raise BadSignature(f"{peer_id!r} is not an Ed25519 peer id")
    return public_key


def signed_bytes(*, kind: str, signer: str, digest: bytes, body: bytes) -> bytes:
    """The bytes a signature covers: `"cosine/<kind>/1" || signer || d_0 || body`, each part counted."""
    parts = (f"cosine/{kind}/1".encode(), signer.encode(), digest, body)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def verify(*, kind: str, signer: str, digest: bytes, body: bytes, signature: bytes) -> None:
    """Check a detached signature by `signer`. Raises `BadSignature`."""
    key = Ed25519PublicKey.from_public_bytes(public_key_of(signer))
    try:
        key.verify(signature, signed_bytes(kind=kind, signer=signer, digest=digest, body=body))
    except InvalidSignature:
        raise BadSignature(f"{signer}: the signature of a {kind} does not match") from None


class Identity:
    """A private key, its peer id, and what it signs."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._key = private_key
        self._public = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.peer_id = peer_id_of(self._public)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def generate(cls) -> "Identity":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """The identity of a 32-byte seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_file_bytes(cls, data: bytes) -> "Identity":
        """Read a libp2p key file. Raises `UsageError` if it is not an Ed25519 one."""
        if len(data) != len(_PRIVATE_PREFIX) + 2 * _KEY_BYTES or not data.startswith(_PRIVATE_PREFIX):
            raise UsageError("The identity file does not hold a libp2p Ed25519 private key.")
        seed = data[len(_PRIVATE_PREFIX) : len(_PRIVATE_PREFIX) + _KEY_BYTES]
        identity = cls.from_seed(seed)
        if not data.endswith(identity._public):
            raise UsageError("The identity file is damaged: its two keys do not belong together.")
        return identity

    def to_file_bytes(self) -> bytes:
        seed = self._key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return _PRIVATE_PREFIX + seed + self._public

    def sign(self, *, kind: str, digest: bytes, body: bytes) -> bytes:
        """A 64-byte signature over `body`, bound to `kind`, this signer and a request digest."""
        return self._key.sign(signed_bytes(kind=kind, signer=self.peer_id, digest=digest, body=body))
