"""Frames: a 4-byte big-endian length, then the body. Sans-I/O: bytes in, whole frames out."""

import struct

from cosine_protocol.errors import FrameTooLarge, LocalProtocolError
from cosine_protocol.limits import MAX_FRAME_BYTES

_LENGTH = struct.Struct(">I")  # four bytes, big-endian


def encode_frame(body: bytes) -> bytes:
    """One frame around `body`. Raises `LocalProtocolError` past `MAX_FRAME_BYTES`."""
    if len(body) > MAX_FRAME_BYTES:
        raise LocalProtocolError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Splits a byte stream into frames. Never buffers more than one frame and what came with it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Whole frames completed by `data`. Raises `FrameTooLarge` before buffering an oversized one."""
        self._buffer += data
        frames = []
        start = 0
        while (body := self._frame_at(start)) is not None:
            frames.append(body)
            start += _LENGTH.size + len(body)
        del self._buffer[:start]
        return frames

    @property
    def is_between_frames(self) -> bool:
        """True if the stream may end here without cutting a frame."""
        return not self._buffer

    def _frame_at(self, start: int) -> bytes | None:
        if len(self._buffer) - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if length > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME_BYTES}")
        begin = start + _LENGTH.size
        if len(self._buffer) < begin + length:
            return None
        return bytes(self._buffer[begin : begin + length])
