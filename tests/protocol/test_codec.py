"""The codec: every message survives, everything else is refused with a typed error."""

import dataclasses
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.codec import HEADER_BYTES, decode, decode_body, encode, encode_body, encode_frame
from cosine_protocol.errors import LocalProtocolError, MalformedMessage
from cosine_protocol.fields import Added, Kind, fields_of, wire_fields_of
from cosine_protocol.identity import Identity
from cosine_protocol.nodes import Node, NodeBlock
from cosine_protocol.protocols import TAGS
from cosine_protocol.stage_messages import (
    Activations,
    FedRow,
    FeedPass,
    PruneNodes,
    Results,
    ReusePrefix,
    RowAnswer,
    TokenEstimate,
)
from tests.protocol.strategies import BODIES, WIRE_CLASSES, allowed, least_of, of_class, raw, refused

TAG_OF = {cls: tag for tag, cls in TAGS.items()}
FIELDS = [(cls, name, kind) for cls in WIRE_CLASSES for name, kind in fields_of(cls)]
A_NUMBER = 40_000
A_TOKEN = 151_000


def _name(value: Any) -> str | None:
    return value.__name__ if isinstance(value, type) else None


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


def _of_field(cls: type, name: str, value: Any) -> Any:
    return dataclasses.replace(least_of(cls), **{name: value})


@pytest.mark.parametrize("cls", WIRE_CLASSES, ids=_name)
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_survives_the_wire(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_class(cls))
    assert _get(cls, _put(value)) == value


@pytest.mark.parametrize("cls", WIRE_CLASSES, ids=_name)
@settings(max_examples=5)
@given(data=st.data())
def test_unknown_trailing_fields_are_ignored_and_missing_ones_are_not(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_class(cls))
    values = msgpack.unpackb(_put(value))
    added = [kind for _, kind in fields_of(cls) if isinstance(kind, Added)]
    head = [] if cls in BODIES else [TAG_OF[cls]]
    absent = [None] * (len(head) + len(wire_fields_of(cls)) - len(values))
    assert _get(cls, msgpack.packb([*values, *absent, "later", [7, None]])) == value
    with pytest.raises(MalformedMessage, match="needs"):
        _get(cls, msgpack.packb([*values, *absent][: -len(added) - 1]))


def test_trailing_fields_of_a_nested_array_are_ignored_too() -> None:
    commit = least_of(m.Commit)
    values = raw(commit)
    assert decode(msgpack.packb([TAG_OF[m.Commit], *values[:-2], [*values[-2], "later"]])) == commit


def test_unknown_tags_are_refused() -> None:
    for tag in (-1, *(set(range(256)) - set(TAGS)), 1 << 40):
        with pytest.raises(MalformedMessage, match=f"unknown message tag {tag}"):
            decode(msgpack.packb([tag, 1, 2, 3, 4, 5]))


@pytest.mark.parametrize(
    "values", [None, 2, b"\2", "Ping", [], ["2", 1], [2.0, 1], [True, 1], [None], {}, [[2], 1]]
)
def test_what_is_no_array_with_a_tag_is_refused(values: object) -> None:
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


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=_name)
def test_a_field_at_its_bound_is_accepted(cls: type, name: str, kind: Kind) -> None:
    for value in allowed(kind):
        message = _of_field(cls, name, value)
        assert _get(cls, _put(message)) == message


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=_name)
def test_a_field_past_its_bound_is_refused_on_both_ways(cls: type, name: str, kind: Kind) -> None:
    for value in refused(kind):
        message = _of_field(cls, name, value)
        with pytest.raises(LocalProtocolError, match=f"^{cls.__name__}: "):
            _put(message)
        data = _unchecked(message)
        if data is not None:
            with pytest.raises(MalformedMessage):
                _get(cls, data)


def test_a_draft_of_eight_nodes_is_under_200_bytes_with_its_signature() -> None:
    nodes = NodeBlock.of([Node(index - 1, A_TOKEN + index, 0.5) for index in range(8)])
    body = encode_body(m.Draft(A_NUMBER, A_NUMBER, bytes(16), A_NUMBER, nodes))
    signature = Identity.from_seed(bytes(32)).sign(kind="fragment", digest=bytes(16), body=body)
    assert len(encode_frame(encode(m.Fragment(body, signature)))) < 200


def test_a_tree_of_sixteen_nodes_and_its_commit_are_under_300_bytes_together() -> None:
    nodes = NodeBlock.of([Node(index - 1, A_TOKEN + index, 0.5) for index in range(16)])
    tree = m.Tree(A_NUMBER, bytes(16), A_NUMBER, nodes, bytes([1] * 16))
    tokens = tuple(range(A_TOKEN, A_TOKEN + 5))
    stats = m.PassStats(nodes=16, near_ties=0, pass_us=A_NUMBER)
    commit = m.Commit(A_NUMBER, A_NUMBER, tokens, bytes(16), bytes(5), stats)
    assert sum(len(encode_frame(encode(message))) for message in (tree, commit)) < 300


def test_what_the_limits_of_a_chain_allow_fits_into_a_frame() -> None:
    most, names = limits.MAX_REQUEST_NUMBER, limits.MAX_FEED_TOKENS
    tokens = (limits.MAX_TOKEN_ID,) * names
    first = FedRow(most, tokens, (most,) * names, (most,) * names, 0, 7, wants_nll=True)
    rows = (first, *[FedRow(most, (), (), (), 0, 7, wants_nll=True)] * (limits.MAX_FEED_ROWS - 1))
    estimates = (TokenEstimate(limits.MAX_TOKEN_ID, 0.5),) * (limits.MAX_FEED_CHOICES // names - 1)
    answer = RowAnswer(0, tokens, bytes(limits.MARGIN_BYTES * names), (estimates,) * names, 2.5)
    answers = (answer, *[RowAnswer(0, (), b"", (), 2.5)] * (limits.MAX_FEED_ROWS - 1))
    for message in (
        FeedPass(most, rows, limits.MAX_ACTIVATION_BYTES),
        Activations(bytes(limits.MAX_PART_BYTES)),
        Results(most, answers),
        PruneNodes(most, (most,) * limits.MAX_NAMED_NODES),
        ReusePrefix(most, (limits.MAX_TOKEN_ID,) * limits.MAX_PROMPT_TOKENS),
    ):
        assert decode(encode_frame(encode(message))[HEADER_BYTES:]) == message
