"""Ed25519 identities, which are libp2p peer ids, and the signed bodies of messages. Pure.

A signature covers the encoded body, its kind, the signer, and the digest of its subject, for requests `d_0`
(docs/protocol.md, section 9). Key files hold libp2p's PrivateKey protobuf {Type = Ed25519, Data = seed || public
key}; a peer id is the base58 of the identity multihash of the public key protobuf (libp2p specs, "Peer Ids and
Keys").
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from cosine_protocol.errors import BadSignature, MalformedMessage, UsageError
from cosine_protocol.fields import (
    MAX_FRAME_BYTES,
    MAX_PEER_ID_BYTES,
    Bytes,
    Signature,
    Struct,
    decode_body,
    encode_body,
)

# The protobufs of libp2p keys and the identity multihash, up to the keys themselves.
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
    # base58 ignores trailing white space, so one key would have many ids.
    if len(public_key) != _KEY_BYTES or peer_id_of(public_key) != peer_id:
        raise BadSignature(f"{peer_id!r} is not an Ed25519 peer id")
    return public_key


def multihash_of(peer_id: str) -> bytes:
    """A peer id in bytes, as in libp2p's messages. Raises `BadSignature`."""
    return _PEER_PREFIX + public_key_of(peer_id)


def signed_bytes(*, kind: str, signer: str, digest: bytes, body: bytes) -> bytes:
    """The signed bytes: `"cosine/<kind>/1" || signer || d_0 || body`, each part after its length."""
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
    """A private key and its peer id."""

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


class SignedBody(Protocol):
    """A signed dataclass: the kind of its signature, and the maximum size of its encoding."""

    KIND: ClassVar[str]
    MAX_BYTES: ClassVar[int]


BodyT = TypeVar("BodyT", bound=SignedBody)


@dataclass(frozen=True, slots=True)
class Signed(Generic[BodyT]):
    """An encoded body with the signature of its author."""

    body: Annotated[bytes, Bytes(MAX_FRAME_BYTES)]
    signature: Signature

    @staticmethod
    def kind_of(body: type[SignedBody]) -> "SignedField":
        return SignedField(body)


@dataclass(frozen=True, slots=True)
class SignedField(Struct):
    """A `Signed` whose body decodes to `of`, within its maximum size."""

    cls: type = dataclasses.field(default=Signed, init=False)
    of: type[SignedBody]

    def unpack(self, value: object) -> Any:
        return self._bounded(Struct.unpack(self, value))

    def pack(self, value: Any) -> object:
        return Struct.pack(self, self._bounded(value))

    def _bounded(self, signed: Signed[Any]) -> Signed[Any]:
        Bytes(self.of.MAX_BYTES).unpack(signed.body)
        return signed


class SignedBytes(Protocol):
    """A `Signed`, or a message with the same two fields."""

    @property
    def body(self) -> bytes: ...

    @property
    def signature(self) -> bytes: ...


def sign(author: Identity, body: BodyT, *, digest: bytes = b"") -> Signed[BodyT]:
    """A body with the signature of `author`, bound to `digest`."""
    encoded = encode_body(body)
    return Signed(encoded, author.sign(kind=body.KIND, digest=digest, body=encoded))


def check_signature(cls: type[SignedBody], signed: SignedBytes, *, author: str, digest: bytes = b"") -> None:
    """Raise `BadSignature` unless `author` signed the body as one of `cls`, bound to `digest`."""
    verify(kind=cls.KIND, signer=author, digest=digest, body=signed.body, signature=signed.signature)


def open_signed(cls: type[BodyT], signed: SignedBytes, *, author: str, digest: bytes = b"") -> BodyT:
    """The body that `author` signed. Raises `BadSignature` and `MalformedMessage`."""
    check_signature(cls, signed, author=author, digest=digest)
    return decode_body(cls, signed.body)


def unseal(cls: type[BodyT], data: bytes) -> Signed[BodyT]:
    """The inverse of `encode_body` for a `Signed`; its signature is not checked. Raises `MalformedMessage`."""
    signed: Signed[BodyT] = decode_body(Signed, data)
    if len(signed.body) > cls.MAX_BYTES:
        raise MalformedMessage(f"a {cls.KIND} of {len(signed.body)} bytes is over the limit of {cls.MAX_BYTES}")
    return signed
