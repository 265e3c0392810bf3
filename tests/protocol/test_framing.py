"""Frames: whole bodies out of any split of a byte stream, and bounded memory."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.codec import FrameDecoder, encode_frame
from cosine_protocol.errors import FrameTooLarge, LocalProtocolError
from cosine_protocol.limits import MAX_FRAME_BYTES

HEADER_BYTES = 4


def _fed(decoder: FrameDecoder, stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [frame for begin, end in pairwise(edges) for frame in decoder.feed(stream[begin:end])]


@given(bodies=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(0, 1000)))
def test_any_split_of_a_stream_yields_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    assert _fed(decoder, b"".join(map(encode_frame, bodies)), cuts) == bodies
    assert decoder.is_between_frames


def test_byte_by_byte_yields_the_same_frames() -> None:
    bodies = [b"", b"one", bytes(300)]
    stream = b"".join(map(encode_frame, bodies))
    assert _fed(FrameDecoder(), stream, list(range(len(stream)))) == bodies


def test_a_stream_cut_within_a_frame_is_not_between_frames() -> None:
    frame = encode_frame(b"body")
    for size in range(1, len(frame)):
        decoder = FrameDecoder()
        assert decoder.feed(frame[:size]) == []
        assert not decoder.is_between_frames


def test_the_largest_frame_passes_both_ways() -> None:
    body = bytes(MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(body)) == [body]


def test_one_byte_more_is_our_own_error_when_sent() -> None:
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_frame(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_an_oversized_frame_is_refused_by_its_header_alone(length: int) -> None:
    with pytest.raises(FrameTooLarge, match=str(length)):
        FrameDecoder().feed(length.to_bytes(HEADER_BYTES, "big"))


def test_a_refused_stream_stays_refused() -> None:
    decoder = FrameDecoder()
    for data in (b"\xff" * HEADER_BYTES, encode_frame(b"good")):
        with pytest.raises(FrameTooLarge):
            decoder.feed(data)


def test_the_buffer_never_holds_more_than_one_frame() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(bytes(MAX_FRAME_BYTES)) * 3
    chunk = 60_000
    for begin in range(0, len(stream), chunk):
        decoder.feed(stream[begin : begin + chunk])
        # The bound is on what stays behind, which no public name shows.
        assert len(decoder._buffer) < MAX_FRAME_BYTES + HEADER_BYTES
