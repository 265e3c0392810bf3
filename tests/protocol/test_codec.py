"""The codec: round trips, refusals, and bounded memory."""

import dataclasses
import math
import re
import tracemalloc
from itertools import pairwise
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol import fields, stage
from cosine_protocol.codec import (
    HEADER_BYTES,
    MESSAGES,
    TAGS,
    FrameDecoder,
    check_allowed,
    decode,
    encode,
    encode_frame,
)
from cosine_protocol.discover import AskStatus
from cosine_protocol.draft import MAX_BLOCK_NODES, Mandate, NodeBlock
from cosine_protocol.errors import FrameTooLarge, LocalProtocolError, MalformedMessage
from cosine_protocol.identity import Signed, SignedField
from cosine_protocol.stream import Error, Hello, Ping, Pong

LONG = bytes(Mandate.MAX_BYTES + 1)


def siblings(size: int) -> NodeBlock:
    return NodeBlock(bytes(size), (1,) * size, bytes(size))


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (fields.Whole(9, 2), (2, 9), (1, 10, True, 2.0, "3", None)),
        (fields.Real(1.0, -1.0), (-1.0, 1.0), (math.nextafter(1.0, 2.0), -2.0, math.nan, math.inf)),
        (fields.Flag(), (False, True), (0, 1, "")),
        (fields.Bytes(4, 2), (b"ab", b"abcd"), (b"a", b"abcde", "abc")),
        (fields.Text(4), ("", "abcd", "éé"), ("abcde", "ééa", "\ud800", b"a")),
        (fields.Items(fields.Whole(9), 2), ((), (9, 9)), ((9, 9, 9), (10,))),
        (fields.Maybe(fields.Whole(9)), (None, 9), (10, "9")),
        (fields.Struct(AskStatus), (AskStatus(5),), (AskStatus(-1),)),
        (SignedField(Mandate), (Signed(b"", bytes(64)),), (Signed(b"", bytes(63)), Signed(LONG, bytes(64)))),
        (fields.Struct(NodeBlock), (siblings(MAX_BLOCK_NODES),), (siblings(MAX_BLOCK_NODES + 1),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_field_takes_what_lies_within_its_bounds(
    kind: fields.Kind, accepted: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    """`protocol/vectors/schema.json` has the kind and the bounds of every field."""
    for value in accepted:
        assert kind.unpack(kind.pack(value)) == value
    for value in refused:
        with pytest.raises(MalformedMessage):
            kind.pack(value)
        plain = dataclasses.is_dataclass(value)
        with pytest.raises(MalformedMessage):
            kind.unpack(list(dataclasses.astuple(value)) if plain else value)


def test_a_value_out_of_bounds_is_our_own_error_where_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError, match=r"^AskStatus: "):
        encode(AskStatus(-1))


@pytest.mark.parametrize(
    ("parents", "tokens", "confidences", "reason"),
    [
        (b"\1", (1,), b"\0", "before its parent"),
        (b"\0\2", (1, 1), b"\0\0", "before its parent"),
        (b"\0", (), b"\0", "differ in number"),
        (b"\0", (1,), b"", "differ in number"),
    ],
)
def test_bad_blocks_are_refused(parents: bytes, tokens: tuple[int, ...], confidences: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        NodeBlock(parents, tokens, confidences)


def test_unknown_tags_and_what_is_no_array_with_a_tag_are_refused() -> None:
    for tag in (-1, *(set(range(256)) - set(TAGS)), 1 << 40):
        with pytest.raises(MalformedMessage, match=f"unknown message tag {tag}"):
            decode(msgpack.packb([tag, 1, 2, 3, 4, 5]))
    values: object
    for values in (None, 2, b"\2", "Ping", [], ["2", 1], [2.0, 1], [True, 1], [None], {}, [[2], 1]):
        with pytest.raises(MalformedMessage):
            decode(msgpack.packb(values))


@pytest.mark.parametrize("array", [b"\xdd\x00\x02\x00\x00", b"\xdc\x0b\x00"], ids=["of 131,072", "of 2,816"])
def test_no_room_is_made_for_values_that_an_array_only_claims(array: bytes) -> None:
    """A thousand nested arrays would take 80 MB for a frame of 5 KB."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="not msgpack"):
            decode(array * 1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@dataclasses.dataclass(frozen=True)
class _Grown:
    number: Annotated[int, fields.Whole(9)]
    extra: Annotated[int | None, fields.Added(fields.Whole(9))] = None


def test_an_added_field_may_be_absent_and_is_as_strict_as_others_once_it_is_there() -> None:
    present: list[tuple[list[object], _Grown]]
    present = [([3], _Grown(3)), ([3, None], _Grown(3)), ([3, 4], _Grown(3, 4)), ([3, 4, 5], _Grown(3, 4))]
    for values, grown in present:
        assert fields.unpack_fields(_Grown, values) == grown
        assert fields.pack_fields(grown) == [value for value in values if value is not None][:2]
    for bad in ([], [3, 10], [3, "4"], [3, True]):
        with pytest.raises(MalformedMessage, match=r"needs 1 fields|_Grown\.extra"):
            fields.unpack_fields(_Grown, bad)


def test_what_the_limits_of_a_chain_allow_fits_into_a_frame() -> None:
    most, names = fields.MAX_REQUEST_NUMBER, stage.MAX_FEED_TOKENS
    tokens = (fields.MAX_TOKEN_ID,) * names
    first = stage.FedRow(most, tokens, (most,) * names, (most,) * names, 0, 7, wants_nll=True)
    rows = (first, *[stage.FedRow(most, (), (), (), 0, 7, wants_nll=True)] * (stage.MAX_FEED_ROWS - 1))
    estimates = (stage.TokenEstimate(fields.MAX_TOKEN_ID, 0.5),) * (stage.MAX_FEED_CHOICES // names - 1)
    answer = stage.RowAnswer(0, tokens, bytes(stage.MARGIN_BYTES * names), (estimates,) * names, 2.5)
    answers = (answer, *[stage.RowAnswer(0, (), b"", (), 2.5)] * (stage.MAX_FEED_ROWS - 1))
    projections = bytes(stage.PROJECTIONS * stage.PROJECTION_BYTES * names)
    trace = stage.PartTrace(projections, projections)
    for message in (
        stage.FeedPass(most, rows, stage.MAX_ACTIVATION_BYTES),
        stage.Activations(bytes(stage.MAX_PART_BYTES)),
        stage.Results(most, answers),
        stage.Probed((trace, *[stage.PartTrace(b"", b"")] * (stage.MAX_PROBE_PARTS - 1))),
        stage.PruneNodes(most, (most,) * stage.MAX_NAMED_NODES),
        stage.ReusePrefix(most, (fields.MAX_TOKEN_ID,) * fields.MAX_PROMPT_TOKENS),
    ):
        assert decode(encode_frame(encode(message))[HEADER_BYTES:]) == message


def _fed(decoder: FrameDecoder, stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [frame for begin, end in pairwise(edges) for frame in decoder.feed(stream[begin:end])]


@given(bodies=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(0, 1000)))
def test_any_split_of_a_stream_yields_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(encode_frame, bodies))
    for places in (cuts, list(range(len(stream)))):
        decoder = FrameDecoder()
        assert _fed(decoder, stream, places) == bodies
        # Nothing is left over.
        assert decoder.feed(encode_frame(b"after")) == [b"after"]


def test_the_largest_frame_passes_both_ways_and_one_byte_more_is_our_own_error() -> None:
    body = bytes(fields.MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(body)) == [body]
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_frame(body + b"\0")


@pytest.mark.parametrize("length", [fields.MAX_FRAME_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_an_oversized_frame_is_refused_by_its_header_alone_and_its_stream_stays_refused(length: int) -> None:
    decoder = FrameDecoder()
    for data in (length.to_bytes(HEADER_BYTES, "big"), encode_frame(b"good")):
        with pytest.raises(FrameTooLarge, match=str(length)):
            decoder.feed(data)


def test_the_buffer_never_holds_more_than_one_frame() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(bytes(fields.MAX_FRAME_BYTES)) * 3
    chunk = 60_000
    for begin in range(0, len(stream), chunk):
        decoder.feed(stream[begin : begin + chunk])
        # The bound is on what stays behind, which no public name shows.
        assert len(decoder._buffer) < fields.MAX_FRAME_BYTES + HEADER_BYTES


@pytest.mark.parametrize("protocol", MESSAGES)
def test_a_message_passes_exactly_where_it_belongs(protocol: str) -> None:
    assert re.fullmatch(r"/cosine/[a-z]+/[12]\.0\.0", protocol)
    carried = set(MESSAGES[protocol])
    assert {Hello, Ping, Pong, Error} <= carried
    for cls in TAGS.values():
        message: Any = object.__new__(cls)
        if cls in carried:
            check_allowed(protocol, message)
        else:
            with pytest.raises(MalformedMessage, match=f"{cls.__name__} does not belong on {protocol}"):
                check_allowed(protocol, message)
