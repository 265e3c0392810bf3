"""msgpack codec over a closed registry: one array `[tag, fields...]` per message."""

from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgpack

from cosine_protocol import messages as m
from cosine_protocol.errors import LocalProtocolError, MalformedMessage
from cosine_protocol.fields import pack_fields, unpack_fields
from cosine_protocol.limits import MAX_FRAME_BYTES, MAX_PROMPT_TOKENS
from cosine_protocol.messages import AskAudit, AskFile, Audited, FilePiece, Member, Receipted, Revoked
from cosine_protocol.stage_messages import (
    Activations,
    FeedPass,
    Follow,
    Join,
    Joined,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    Results,
    ReusePrefix,
)

_BODY = TypeVar("_BODY")

# The registry of docs/protocol.md: a tag never changes its meaning.
TAGS: Final = MappingProxyType(
    {
        1: m.Hello,
        2: m.Ping,
        3: m.Pong,
        4: m.Error,
        5: m.Final,
        16: m.Open,
        17: m.Opened,
        18: m.Tree,
        21: m.Commit,
        22: m.Cancel,
        23: m.Delegate,
        24: m.Declined,
        25: m.Revoke,
        26: m.Credit,
        27: m.Report,
        32: m.Start,
        33: m.Started,
        34: m.Assign,
        35: m.Fragment,
        36: m.Advance,
        37: m.Busy,
        38: m.Release,
        39: Receipted,
        48: m.AskRecords,
        49: m.Records,
        50: AskFile,
        51: FilePiece,
        64: m.AskStatus,
        65: m.Status,
        80: AskAudit,
        81: Audited,
        96: Member,
        97: Revoked,
        112: Join,
        113: Joined,
        114: Follow,
        115: OpenSequence,
        116: ReusePrefix,
        117: ReserveRoom,
        118: FeedPass,
        119: Activations,
        120: KeepPath,
        121: PruneNodes,
        122: ReleaseSequence,
        123: Results,
    }
)
_TAG_OF: Final = {cls: tag for tag, cls in TAGS.items()}


def _unpack(data: bytes) -> object:
    """Strict msgpack: bounded, no extension types, no maps with odd keys."""
    try:
        # Room for an array is made before its values are read, on a thousand levels: see first that they are there.
        whole = msgpack.Unpacker(max_buffer_size=len(data))
        whole.feed(data)
        whole.skip()
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_bin_len=MAX_FRAME_BYTES,
            max_str_len=MAX_FRAME_BYTES,
            max_array_len=MAX_PROMPT_TOKENS,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"not msgpack: {error or type(error).__name__}") from None


def _packed(values: list[object], what: str) -> bytes:
    try:
        return cast(bytes, msgpack.packb(values, use_bin_type=True))
    except (OverflowError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{what} cannot be encoded: {error}") from None


def encode(message: m.Message) -> bytes:
    """The frame body of a message. Raises `LocalProtocolError` where a field is out of its bounds."""
    name = type(message).__name__
    try:
        fields = pack_fields(message)
    except MalformedMessage as error:
        raise LocalProtocolError(f"{name}: {error}") from None
    return _packed([_TAG_OF[type(message)], *fields], name)


def decode(data: bytes) -> m.Message:
    """The message in a frame body. Raises `MalformedMessage`, whatever the bytes are."""
    values = _unpack(data)
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise MalformedMessage("a message is an array that starts with a tag")
    cls = TAGS.get(values[0])
    if cls is None:
        raise MalformedMessage(f"unknown message tag {values[0]}")
    return cast(m.Message, unpack_fields(cls, values[1:]))


def encode_body(body: Any) -> bytes:
    """The bytes of a signed body (`Draft`, `Account`, a record): an array of its fields."""
    try:
        return _packed(pack_fields(body), type(body).__name__)
    except MalformedMessage as error:
        raise LocalProtocolError(f"{type(body).__name__}: {error}") from None


def decode_body(cls: type[_BODY], data: bytes) -> _BODY:
    """The inverse of `encode_body`; trailing fields are ignored. Raises `MalformedMessage`."""
    return cast(_BODY, unpack_fields(cls, _unpack(data)))
