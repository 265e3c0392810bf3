"""The closed set of messages, and their frames. Sans-I/O.

A frame is a 4-byte big-endian length and a msgpack array `[tag, fields...]`.
"""

import struct
from types import MappingProxyType
from typing import Final, cast, get_args

from cosine_protocol import audit, discover, draft, stage, verify, weights
from cosine_protocol.errors import FrameTooLarge, LocalProtocolError, MalformedMessage
from cosine_protocol.fields import MAX_FRAME_BYTES, TAG_OF, encode_body, unpack_array, unpack_fields

Message = (
    verify.VerifyMessage
    | draft.DraftMessage
    | discover.DiscoverMessage
    | discover.StatusMessage
    | audit.AuditMessage
    | stage.StageMessage
    | weights.WeightsMessage
)
MESSAGES: Final = MappingProxyType(
    {
        verify.VERIFY: get_args(verify.VerifyMessage),
        draft.DRAFT: get_args(draft.DraftMessage),
        discover.DISCOVER: get_args(discover.DiscoverMessage),
        discover.STATUS: get_args(discover.StatusMessage),
        audit.AUDIT: get_args(audit.AuditMessage),
        stage.STAGE: get_args(stage.StageMessage),
        weights.WEIGHTS: get_args(weights.WeightsMessage),
    }
)
"""The messages of each protocol."""
TAGS: Final[MappingProxyType[int, type]] = MappingProxyType({TAG_OF[cls]: cls for cls in get_args(Message)})

_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size  # The length before each frame's body.


def check_allowed(protocol: str, message: Message) -> None:
    """Raise `MalformedMessage` for a message that does not belong to this protocol."""
    if type(message) not in MESSAGES[protocol]:
        raise MalformedMessage(f"{type(message).__name__} does not belong on {protocol}")


def encode(message: Message) -> bytes:
    """The frame body of a message. Raises `LocalProtocolError` for a field out of bounds."""
    return encode_body(message, TAG_OF[type(message)])


def decode(data: bytes) -> Message:
    """The message in a frame body. Raises only `MalformedMessage`, for any bytes."""
    values = unpack_array(data)
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise MalformedMessage("a message is an array that starts with a tag")
    cls = TAGS.get(values[0])
    if cls is None:
        raise MalformedMessage(f"unknown message tag {values[0]}")
    return cast(Message, unpack_fields(cls, values[1:]))


def encode_frame(body: bytes) -> bytes:
    """One frame around `body`. Raises `LocalProtocolError` above `MAX_FRAME_BYTES`."""
    if len(body) > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def frame_at(buffer: bytes | bytearray, start: int = 0, *, max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """The body of the frame that begins at `start`, None while it is incomplete. Raises `FrameTooLarge`."""
    if len(buffer) - start < HEADER_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(buffer, start)
    if length > max_bytes:
        raise FrameTooLarge(f"a frame of {length} bytes was announced; the limit is {max_bytes}")
    begin = start + HEADER_BYTES
    return bytes(buffer[begin : begin + length]) if len(buffer) >= begin + length else None


class FrameDecoder:
    """Splits a byte stream into frames. Buffers at most one frame and the data received with it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Whole frames completed by `data`. Raises `FrameTooLarge` before buffering an oversized one."""
        self._buffer += data
        frames = []
        start = 0
        while (body := frame_at(self._buffer, start)) is not None:
            frames.append(body)
            start += HEADER_BYTES + len(body)
        del self._buffer[:start]
        return frames
