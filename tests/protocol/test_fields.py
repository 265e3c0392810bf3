"""Field kinds: what they let through, both ways."""

import dataclasses
import inspect
from typing import Annotated, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_protocol import messages as m
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import (
    Added,
    Bytes,
    Flag,
    Items,
    Kind,
    Maybe,
    Real,
    Text,
    Whole,
    exactly,
    fields_of,
    pack_fields,
    unpack_fields,
    wire_fields_of,
)
from cosine_protocol.protocols import TAGS
from cosine_protocol.records import Role
from cosine_protocol.request import Request, Sampling
from tests.protocol.samples import request_of
from tests.protocol.strategies import BODIES, WIRE_CLASSES, of_class


@pytest.mark.parametrize("cls", WIRE_CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_every_wire_class_has_a_strategy_and_survives_packing(cls: type, data: st.DataObject) -> None:
    value = data.draw(of_class(cls))
    assert unpack_fields(cls, pack_fields(value)) == value


def test_every_message_is_registered() -> None:
    assert set(get_args(m.Message)) == set(TAGS.values())


def test_every_dataclass_of_the_module_is_a_message_a_body_or_a_part() -> None:
    parts = {m.PassStats, m.Revocation}
    defined = {
        cls
        for _, cls in inspect.getmembers(m, dataclasses.is_dataclass)
        if inspect.isclass(cls) and cls.__module__ == m.__name__
    }
    assert defined == {cls for cls in WIRE_CLASSES if cls.__module__ == m.__name__} | parts
    assert set(BODIES).isdisjoint(TAGS.values())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Whole(1), True),
        (Whole(1), 1.0),
        (Whole(1), "1"),
        (Whole(1), None),
        (Real(1.0), 1),
        (Real(1.0), True),
        (Real(1.0), "1"),
        (Bytes(3), "abc"),
        (Bytes(3), bytearray(b"abc")),
        (exactly(3), b"ab"),
        (Text(3), b"abc"),
        (Items(Whole(1), 3), b"\0\1"),
        (Items(Whole(1), 3), "01"),
        (Items(Whole(1), 3), {0: 1}),
        (Items(Whole(1), 3), [None]),
        (Maybe(Whole(1)), 2),
        (Added(Whole(1)), 2),
        (Flag(), 1),
        (Flag(), None),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Kind, value: object) -> None:
    with pytest.raises(MalformedMessage):
        kind.unpack(value)


def test_an_enum_member_and_a_whole_float_are_packed_as_what_they_mean() -> None:
    assert type(Whole(1).pack(m.Pacing.PLAIN)) is int
    assert type(Text(16).pack(Role.DRAFTER)) is str
    assert type(Real(1.0).pack(1)) is float


def test_the_message_of_an_error_names_the_field() -> None:
    with pytest.raises(MalformedMessage, match=r"^Pong\.number: expected a whole number from 0"):
        unpack_fields(m.Pong, [-1])


@pytest.mark.parametrize("values", [None, 3, b"\1", "1", {}, []])
def test_a_class_is_built_from_an_array_only(values: object) -> None:
    with pytest.raises(MalformedMessage, match="Pong needs 1 fields"):
        unpack_fields(m.Pong, values)


@dataclasses.dataclass(frozen=True)
class _Grown:
    """A message that got a field later."""

    number: Annotated[int, Whole(9)]
    extra: Annotated[int | None, Added(Whole(9))] = None


@pytest.mark.parametrize(
    ("values", "grown"),
    [([3], _Grown(3)), ([3, None], _Grown(3)), ([3, 4], _Grown(3, 4)), ([3, 4, 5], _Grown(3, 4))],
)
def test_an_added_field_may_be_absent(values: list[object], grown: _Grown) -> None:
    assert unpack_fields(_Grown, values) == grown
    assert pack_fields(grown) == [value for value in values if value is not None][:2]


@pytest.mark.parametrize("values", [[], [3, 10], [3, "4"], [3, True]])
def test_an_added_field_is_as_strict_as_others_once_it_is_there(values: list[object]) -> None:
    with pytest.raises(MalformedMessage, match=r"needs 1 fields|_Grown\.extra"):
        unpack_fields(_Grown, values)


def test_an_inlined_field_has_no_array_of_its_own() -> None:
    names = [name for name, _ in wire_fields_of(Request)]
    assert len(pack_fields(request_of())) == len(names) == len(fields_of(Request)) + len(fields_of(Sampling)) - 1
    assert names[3:6] == ["prompt", "temperature", "top_k"]
    with pytest.raises(MalformedMessage, match=r"^Sampling\.top_k: expected a whole number"):
        values = pack_fields(request_of())
        values[names.index("top_k")] = -1
        unpack_fields(Request, values)
    with pytest.raises(MalformedMessage, match="Request needs 14 fields"):
        unpack_fields(Request, pack_fields(request_of())[:-1])
