"""The wire: every message survives on its own protocols, and all else is refused, in bounded memory."""

import dataclasses
import inspect
import re
import tracemalloc
from itertools import pairwise
from typing import Annotated, Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol import stage_messages as s
from cosine_protocol.codec import (
    HEADER_BYTES,
    FrameDecoder,
    decode,
    decode_body,
    encode,
    encode_body,
    encode_frame,
)
from cosine_protocol.errors import FrameTooLarge, LocalProtocolError, MalformedMessage
from cosine_protocol.fields import (
    Added,
    Whole,
    fields_of,
    pack_fields,
    unpack_fields,
    wire_fields_of,
)
from cosine_protocol.limits import MAX_FRAME_BYTES
from cosine_protocol.nodes import NodeBlock
from cosine_protocol.protocols import (
    MESSAGES,
    TAG_OF,
    TAGS,
    VERSION,
    check_allowed,
    common_features,
)
from cosine_protocol.request import Request, Sampling, Shaping
from tests.protocol.samples import request_of
from tests.protocol.strategies import BODIES, WIRE_CLASSES, allowed, least_of, of_class, raw, refused

every_class = pytest.mark.parametrize("cls", WIRE_CLASSES, ids=lambda cls: cls.__name__)


def _put(value: Any) -> bytes:
    return encode_body(value) if isinstance(value, BODIES) else encode(value)


def _get(cls: type, data: bytes) -> Any:
    return decode_body(cls, data) if cls in BODIES else decode(data)


def _unchecked(value: Any) -> bytes | None:
    """Wire bytes no encoder of ours would make; None for what msgpack itself cannot express."""
    head = [] if isinstance(value, BODIES) else [TAG_OF[type(value)]]
    try:
        return bytes(msgpack.packb([*head, *raw(value)], unicode_errors="surrogatepass"))
    except OverflowError:
        return None


@pytest.mark.thorough
@every_class
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_survives_the_wire_and_may_have_more_fields_but_not_fewer(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_class(cls))
    assert _get(cls, _put(value)) == value
    values = msgpack.unpackb(_put(value))
    added = [kind for _, kind in wire_fields_of(cls) if isinstance(kind, Added)]
    head = [] if cls in BODIES else [TAG_OF[cls]]
    absent = [None] * (len(head) + len(wire_fields_of(cls)) - len(values))
    assert _get(cls, msgpack.packb([*values, *absent, "later", [7, None]])) == value
    with pytest.raises(MalformedMessage, match="needs"):
        _get(cls, msgpack.packb([*values, *absent][: -len(added) - 1]))


@every_class
def test_a_field_at_its_bound_is_accepted_and_one_past_it_is_refused_on_both_ways(cls: type) -> None:
    for name, kind in fields_of(cls):
        for value in allowed(kind):
            message = dataclasses.replace(least_of(cls), **{name: value})
            assert _get(cls, _put(message)) == message
        for value in refused(kind):
            message = dataclasses.replace(least_of(cls), **{name: value})
            with pytest.raises(LocalProtocolError, match=f"^{cls.__name__}: "):
                _put(message)
            data = _unchecked(message)
            if data is not None:
                with pytest.raises(MalformedMessage):
                    _get(cls, data)


def test_every_message_has_a_tag_and_every_dataclass_of_the_module_is_a_message_a_body_or_a_part() -> None:
    assert set(get_args(m.Message)) == set(TAGS.values())
    defined = {
        cls
        for _, cls in inspect.getmembers(m, dataclasses.is_dataclass)
        if inspect.isclass(cls) and cls.__module__ == m.__name__
    }
    parts = {m.PassStats, m.Revocation}
    assert defined == {cls for cls in WIRE_CLASSES if cls.__module__ == m.__name__} | parts
    assert set(BODIES).isdisjoint(TAGS.values())


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
    """On a thousand levels it would be 80 MB for a frame of 5 KB, and 60 ms of a processor."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="not msgpack"):
            decode(array * 1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(
    "values",
    [[3, 1, {"a": 2}], [3, msgpack.ExtType(5, b"x")], [3, msgpack.Timestamp(0)], [3, [1] * 200_000]],
    ids=["map", "extension", "timestamp", "long"],
)
def test_msgpack_beyond_what_messages_need_is_refused(values: object) -> None:
    with pytest.raises(MalformedMessage, match="not msgpack"):
        decode(msgpack.packb(values))


@dataclasses.dataclass(frozen=True)
class _Grown:
    """A message that got a field later."""

    number: Annotated[int, Whole(9)]
    extra: Annotated[int | None, Added(Whole(9))] = None


def test_an_added_field_may_be_absent_and_is_as_strict_as_others_once_it_is_there() -> None:
    present: list[tuple[list[object], _Grown]]
    present = [([3], _Grown(3)), ([3, None], _Grown(3)), ([3, 4], _Grown(3, 4)), ([3, 4, 5], _Grown(3, 4))]
    for values, grown in present:
        assert unpack_fields(_Grown, values) == grown
        assert pack_fields(grown) == [value for value in values if value is not None][:2]
    for bad in ([], [3, 10], [3, "4"], [3, True]):
        with pytest.raises(MalformedMessage, match=r"needs 1 fields|_Grown\.extra"):
            unpack_fields(_Grown, bad)


def test_an_inlined_field_has_no_array_of_its_own() -> None:
    names = [name for name, _ in wire_fields_of(Request)]
    assert len(names) == len(fields_of(Request)) + len(fields_of(Sampling)) - 1
    assert names[3:6] == ["prompt", "temperature", "top_k"]
    values = pack_fields(request_of())
    values[names.index("top_k")] = -1
    with pytest.raises(MalformedMessage, match=r"^Sampling\.top_k: expected a whole number"):
        unpack_fields(Request, values)
    with pytest.raises(MalformedMessage, match="Request needs 14 fields"):
        unpack_fields(Request, pack_fields(request_of())[:-1])


def test_an_added_field_of_an_inlined_one_stands_at_the_end_of_the_array() -> None:
    shaped = request_of(sampling=Sampling(shaping=Shaping(min_tokens=3, held_back=(2,))))
    names = [name for name, _ in wire_fields_of(Request)]
    assert names[-4:] == ["max_new_tokens", "shaping", "constraint", "logprobs"]
    assert pack_fields(shaped)[-2:] == [shaped.max_new_tokens, [0.0, 0.0, [], [], 3, [2]]]
    assert unpack_fields(Request, pack_fields(shaped)) == shaped
    # Who knows nothing of it sends what was sent before.
    assert len(pack_fields(request_of())) == len(names) - 3
    assert unpack_fields(Request, pack_fields(request_of())) == request_of()


def test_what_the_limits_of_a_chain_allow_fits_into_a_frame() -> None:
    most, names = limits.MAX_REQUEST_NUMBER, limits.MAX_FEED_TOKENS
    tokens = (limits.MAX_TOKEN_ID,) * names
    first = s.FedRow(most, tokens, (most,) * names, (most,) * names, 0, 7, wants_nll=True)
    rows = (first, *[s.FedRow(most, (), (), (), 0, 7, wants_nll=True)] * (limits.MAX_FEED_ROWS - 1))
    estimates = (s.TokenEstimate(limits.MAX_TOKEN_ID, 0.5),) * (limits.MAX_FEED_CHOICES // names - 1)
    answer = s.RowAnswer(0, tokens, bytes(limits.MARGIN_BYTES * names), (estimates,) * names, 2.5)
    answers = (answer, *[s.RowAnswer(0, (), b"", (), 2.5)] * (limits.MAX_FEED_ROWS - 1))
    projections = bytes(limits.PROJECTIONS * limits.PROJECTION_BYTES * names)
    trace = s.PartTrace(projections, projections)
    for message in (
        s.FeedPass(most, rows, limits.MAX_ACTIVATION_BYTES),
        s.Activations(bytes(limits.MAX_PART_BYTES)),
        s.Results(most, answers),
        s.Probed((trace, *[s.PartTrace(b"", b"")] * (limits.MAX_PROBE_PARTS - 1))),
        s.PruneNodes(most, (most,) * limits.MAX_NAMED_NODES),
        s.ReusePrefix(most, (limits.MAX_TOKEN_ID,) * limits.MAX_PROMPT_TOKENS),
    ):
        assert decode(encode_frame(encode(message))[HEADER_BYTES:]) == message


@pytest.mark.parametrize(
    ("parents", "tokens", "confidences", "reason"),
    [
        (b"\1", (1,), b"\0", "before its parent"),
        (b"\0\2", (1, 1), b"\0\0", "before its parent"),
        (b"", (1,), b"\0", "differ in number"),
        (b"\0", (), b"\0", "differ in number"),
        (b"\0", (1,), b"", "differ in number"),
    ],
)
def test_a_block_of_parts_that_disagree_or_with_a_parent_that_does_not_come_first_is_refused(
    parents: bytes, tokens: tuple[int, ...], confidences: bytes, reason: str
) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        NodeBlock(parents, tokens, confidences)


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
    body = bytes(MAX_FRAME_BYTES)
    assert FrameDecoder().feed(encode_frame(body)) == [body]
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_frame(body + b"\0")


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_an_oversized_frame_is_refused_by_its_header_alone_and_its_stream_stays_refused(length: int) -> None:
    decoder = FrameDecoder()
    for data in (length.to_bytes(HEADER_BYTES, "big"), encode_frame(b"good")):
        with pytest.raises(FrameTooLarge, match=str(length)):
            decoder.feed(data)


def test_the_buffer_never_holds_more_than_one_frame() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(bytes(MAX_FRAME_BYTES)) * 3
    chunk = 60_000
    for begin in range(0, len(stream), chunk):
        decoder.feed(stream[begin : begin + chunk])
        # The bound is on what stays behind, which no public name shows.
        assert len(decoder._buffer) < MAX_FRAME_BYTES + HEADER_BYTES


@pytest.mark.parametrize("protocol", MESSAGES)
def test_a_message_passes_exactly_where_it_belongs(protocol: str) -> None:
    assert re.fullmatch(r"/cosine/[a-z]+/[12]\.0\.0", protocol)
    carried = set(MESSAGES[protocol].values())
    assert {m.Hello, m.Ping, m.Pong, m.Error} <= carried
    for cls in TAGS.values():
        message = least_of(cls)
        if cls in carried:
            check_allowed(protocol, message)
        else:
            with pytest.raises(MalformedMessage, match=f"{cls.__name__} does not belong on {protocol}"):
                check_allowed(protocol, message)


def test_features_are_those_of_both_ends_and_another_version_is_refused() -> None:
    hello = m.Hello(VERSION, ("a", "b"), "agent")
    assert common_features(("b", "c"), hello) == {"b"}
    assert common_features((), hello) == frozenset()
    with pytest.raises(MalformedMessage, match="version 2, we speak 1"):
        common_features((), m.Hello(VERSION + 1, (), "agent"))
