"""Messages as msgpack arrays `[tag, fields...]` in frames of a 4-byte big-endian length and the body. Sans-I/O."""

import struct
from typing import Any, TypeVar, cast

import msgpack

from cosine_protocol import messages as m
from cosine_protocol.errors import FrameTooLarge, LocalProtocolError, MalformedMessage
from cosine_protocol.fields import pack_fields, unpack_fields
from cosine_protocol.limits import MAX_FRAME_BYTES, MAX_PROMPT_TOKENS
from cosine_protocol.protocols import TAG_OF, TAGS

_BODY = TypeVar("_BODY")
_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size  # The length before each frame's body.


def encode(message: m.Message) -> bytes:
    """The frame body of a message. Raises `LocalProtocolError` for a field out of bounds."""
    return _packed(message, TAG_OF[type(message)])


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
    return _packed(body)


def decode_body(cls: type[_BODY], data: bytes) -> _BODY:
    """The inverse of `encode_body`; trailing fields are ignored. Raises `MalformedMessage`."""
    return cast(_BODY, unpack_fields(cls, _unpack(data)))


def _packed(value: Any, *tag: int) -> bytes:
    name = type(value).__name__
    try:
        values = [*tag, *pack_fields(value)]
    except MalformedMessage as error:
        raise LocalProtocolError(f"{name}: {error}") from None
    try:
        return cast(bytes, msgpack.packb(values, use_bin_type=True))
    except (OverflowError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{name} cannot be encoded: {error}") from None


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


def encode_frame(body: bytes) -> bytes:
    """One frame around `body`. Raises `LocalProtocolError` past `MAX_FRAME_BYTES`."""
    if len(body) > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def frame_at(buffer: bytes | bytearray, start: int = 0, *, max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """The body of the frame that begins at `start`, None while it is not all there. Raises `FrameTooLarge`."""
    if len(buffer) - start < HEADER_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(buffer, start)
    if length > max_bytes:
        raise FrameTooLarge(f"a frame of {length} bytes was announced; the limit is {max_bytes}")
    begin = start + HEADER_BYTES
    return bytes(buffer[begin : begin + length]) if len(buffer) >= begin + length else None


class FrameDecoder:
    """Splits a byte stream into frames. Never buffers more than one frame and what came with it."""

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
