"""Signed DHT records of nodes, and their checks by readers and storing nodes. Pure.

hivemind keeps the record that expires last. A record is `[body, signature]`; the signature covers the DHT key.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, ClassVar, Final

from cosine_protocol import fields as f
from cosine_protocol.errors import BadSignature, LocalProtocolError, MalformedMessage
from cosine_protocol.identity import Identity, open_signed, public_key_of, sign, unseal
from cosine_protocol.membership import MAX_CERTIFICATE_BYTES
from cosine_protocol.request import (
    MAX_EOS_TOKENS,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    MIN_TOP_P,
)
from cosine_protocol.stage import MAX_FEED_TOKENS, MAX_LAYERS, MAX_NAMED_STAGES, MAX_POOL_TOKENS, LayerRange

MAX_RECORD_BYTES: Final = 4096  # Bounds the memory of a storing node for one owner of a cell.
MAX_RECORD_TTL_S: Final = 900.0  # Bounds the time for which a lost node is still found.
MAX_EXPERTISE: Final = 16  # Domains of one drafter. With 64 bytes each they take a quarter of a record.
MAX_NOT_HONOURED: Final = 16  # Names of options; the longest ones take an eighth of a record.
MAX_COORDINATE_US: Final = 5_000_000  # 5 s, far above the round-trip times at which drafts are useful.

# Plain names, see docs/protocol.md, section 10.
SCHEMA = 2
_FACTS_MARK = b"cosine/facts/1"  # Separates the digest from others.


class Role(StrEnum):
    DRAFTER = "drafter"
    VERIFIER = "verifier"
    STAGE = "stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """The options in a target's generation config. None if unset, which is sent; `not_honoured` are unsupported."""

    do_sample: bool = False
    temperature: Annotated[float | None, f.Maybe(f.Real(MAX_TEMPERATURE))] = None
    top_k: Annotated[int | None, f.Maybe(f.Whole(f.MAX_TOKEN_ID))] = None
    top_p: Annotated[float | None, f.Maybe(f.Real(1.0, MIN_TOP_P))] = None
    min_p: Annotated[float | None, f.Maybe(f.Real(1.0))] = None
    repetition_penalty: Annotated[float | None, f.Maybe(f.Real(MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY))] = (
        None
    )
    max_new_tokens: Annotated[int | None, f.Maybe(f.Whole(f.MAX_NEW_TOKENS, 1))] = None
    not_honoured: Annotated[tuple[f.Label, ...], f.AtMost(MAX_NOT_HONOURED)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The properties of a target that determine a text. Their digest identifies the target."""

    content_digest: f.ContentDigest
    tokenizer_digest: f.ContentDigest
    eos: Annotated[tuple[f.Token, ...], f.AtMost(MAX_EOS_TOKENS)]
    generation_defaults: GenerationDefaults | None = None

    def digest(self) -> bytes:
        """The target digest: SHA-256 of a mark and the encoded facts (docs/protocol.md, section 10)."""
        return sha256(_FACTS_MARK + f.encode_body(self)).digest()


_AXIS: Final = f.Whole(MAX_COORDINATE_US, -MAX_COORDINATE_US)


@dataclass(frozen=True, slots=True)
class NetworkCoordinate:
    """A peer's Vivaldi coordinate in microseconds of round-trip time (Dabek et al., SIGCOMM 2004, section 5.4).

    height_us: The way from the machine to the well-connected part of the network.
    error_permille: The recent relative error of estimates; 1000 is a guess.
    """

    x_us: Annotated[int, _AXIS]
    y_us: Annotated[int, _AXIS]
    z_us: Annotated[int, _AXIS]
    height_us: Annotated[int, f.Whole(MAX_COORDINATE_US)]
    error_permille: Annotated[int, f.Whole(1000)]

    def rtt_s(self, other: "NetworkCoordinate") -> float:
        """Estimated round-trip time to another peer, in seconds."""
        apart_us = math.dist((self.x_us, self.y_us, self.z_us), (other.x_us, other.y_us, other.z_us))
        return (apart_us + (self.height_us + other.height_us)) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOffer:
    """The layers of a stage, from `first_layer` to before `end_layer`, and its cost.

    A pass over `wide_tokens` takes `wide_pass_us`. `busy_permille` is its recent utilisation. `pool_tokens` is the
    available pool size.
    """

    first_layer: Annotated[int, f.Whole(MAX_LAYERS)]
    end_layer: Annotated[int, f.Whole(MAX_LAYERS, 1)]
    layers: Annotated[int, f.Whole(MAX_LAYERS, 1)]
    wide_tokens: Annotated[int, f.Whole(MAX_FEED_TOKENS, 1)]
    wide_pass_us: f.Microseconds
    busy_permille: Annotated[int, f.Whole(1000)]
    pool_tokens: Annotated[int, f.Whole(MAX_POOL_TOKENS)]

    @property
    def held(self) -> LayerRange:
        """Raises `MalformedMessage` for an impossible range."""
        return LayerRange(first=self.first_layer, end=self.end_layer, layers=self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node's announcement. Times are Unix seconds.

    target_digest: The digest of the facts in the record, or of a drafter's target.
    pass_us: Time of a one-token pass.
    four_tokens_permille: Relative time of a pass over four tokens, of a verifier without stages.
    learns: No longer used.
    stages: The stages of a verifier.
    """

    KIND: ClassVar = "record"
    MAX_BYTES: ClassVar = MAX_RECORD_BYTES

    schema: Annotated[int, f.Whole(255, 1)]
    peer_id: f.PeerId
    role: Annotated[str, f.Text(16)]
    target: f.Name
    target_digest: f.ContentDigest
    content_digest: f.ContentDigest
    tokenizer_digest: f.ContentDigest
    numerics: f.Name
    model: f.Name
    expertise: Annotated[tuple[f.Label, ...], f.AtMost(MAX_EXPERTISE)]
    capacity_requests: Annotated[int, f.Whole(1 << 20)]
    load_requests: Annotated[int, f.Whole(1 << 20)]
    pass_us: f.Microseconds
    context_tokens: Annotated[int, f.Whole(1 << 30)]
    eos: Annotated[tuple[f.Token, ...], f.AtMost(MAX_EOS_TOKENS)]
    addresses: f.Addresses
    software: f.Name
    emulated: f.Name
    sequence: f.Number
    issued_at_s: f.Seconds
    lifetime_s: Annotated[float, f.Real(MAX_RECORD_TTL_S)]
    generation_defaults: GenerationDefaults | None = None
    certificate: Annotated[bytes, f.Bytes(MAX_CERTIFICATE_BYTES)] | None = None
    coordinate: NetworkCoordinate | None = None
    stage: StageOffer | None = None
    learns: bool | None = None
    stages: Annotated[tuple[f.PeerId, ...], f.AtMost(MAX_NAMED_STAGES)] | None = None
    four_tokens_permille: Annotated[int, f.Whole(100_000, 1)] | None = None

    @property
    def facts(self) -> TargetFacts:
        return TargetFacts(
            content_digest=self.content_digest,
            tokenizer_digest=self.tokenizer_digest,
            eos=self.eos,
            generation_defaults=self.generation_defaults,
        )

    @property
    def expires_at_s(self) -> float:
        return self.issued_at_s + self.lifetime_s


def _binding(key: str) -> bytes:
    return sha256(key.encode()).digest()[: f.DIGEST_BYTES]


def seal_record(record: NodeRecord, identity: Identity, *, key: str) -> bytes:
    """The signed record for `key`. Raises `LocalProtocolError` if it is too long."""
    sealed = f.encode_body(sign(identity, record, digest=_binding(key)))
    if len(sealed) > MAX_RECORD_BYTES:
        raise LocalProtocolError(f"a record of {len(sealed)} bytes is over the limit of {MAX_RECORD_BYTES}")
    return sealed


def open_record(data: bytes, *, key: str, owner: str, now_s: float) -> NodeRecord:
    """Decode and check the record of `owner` under `key`. Raises `MalformedMessage` and `BadSignature`."""
    record = open_undated_record(data, key=key, owner=owner)
    check_times(record, now_s=now_s)
    return record


def open_undated_record(data: bytes, *, key: str, owner: str) -> NodeRecord:
    """Like `open_record`, without checking the time."""
    if len(data) > MAX_RECORD_BYTES:
        raise MalformedMessage(f"a record of {len(data)} bytes is over the limit")
    record = open_signed(NodeRecord, unseal(NodeRecord, data), author=owner, digest=_binding(key))
    if record.schema != SCHEMA:
        raise MalformedMessage(f"record schema {record.schema} is not {SCHEMA}")
    if record.peer_id != owner:
        raise BadSignature("the record names another peer than its owner")
    if record.role not in set(Role):
        raise MalformedMessage(f"unknown role {record.role!r}")
    if record.role != Role.DRAFTER and record.facts.digest() != record.target_digest:
        raise MalformedMessage("the record contradicts its target digest")
    if (record.role == Role.STAGE) != (record.stage is not None):
        raise MalformedMessage("all stages, and no other nodes, announce layers")
    if record.stage is not None:
        _ = record.stage.held
    return record


def check_times(record: NodeRecord, *, now_s: float) -> None:
    """Raise `MalformedMessage` for a future or expired record."""
    if record.issued_at_s > now_s + f.MAX_RECORD_SKEW_S:
        raise MalformedMessage("the record was issued in the future; check the clocks")
    if record.expires_at_s < now_s:
        raise MalformedMessage("the record has expired")


def cell_key(*, network: str, role: str, target: str, owner: str, depth: int) -> str:
    """The DHT key of `owner`'s cell with a prefix of `depth` hex digits (docs/protocol.md, section 10)."""
    prefix = sha256(public_key_of(owner)).hexdigest()[:depth]
    return cell_name(network=network, role=role, target=target, prefix=prefix)


ALL_TARGETS = ""  # The target in the name of cells for all targets.


def cell_name(*, network: str, role: str, target: str, prefix: str) -> str:
    """The DHT key of a cell. `prefix` are hex digits, "" for the first cell."""
    return f"cosine/{network}/{role}/{target}/{prefix}"
