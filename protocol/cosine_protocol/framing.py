"""Frames: a 4-byte big-endian length, then the body. Sans-I/O: bytes in, whole frames out."""

import struct

from cosine_protocol.errors import FrameTooLarge, LocalProtocolError
from cosine_protocol.limits import MAX_FRAME_BYTES

_LENGTH = struct.Struct(">I")  # four bytes, big-endian
HEADER_BYTES = _LENGTH.size
"""The length before each body."""


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

    @property
    def is_between_frames(self) -> bool:
        """True if the stream may end here without cutting a frame."""
        return not self._buffer
