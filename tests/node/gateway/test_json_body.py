"""Bodies are bounded JSON objects."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.text_request import BODY_TIMEOUT_S, MAX_BODY_BYTES, parse_object, read_object

VALUES = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text())


@given(VALUES)
def test_an_object_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary())
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse_object(data), dict)
    except ApiError as refused:
        assert (refused.status, refused.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b"\xff",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000,
    ],
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(data)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_a_body_without_end_is_not_read_to_its_end() -> None:
    pieces = 0

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    with pytest.raises(ApiError) as refused:
        run_virtual(read_object(Request({"type": "http", "method": "POST", "headers": []}, receive)))
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")
    assert pieces == (MAX_BODY_BYTES >> 20) + 1


def test_a_body_that_comes_too_slowly_is_not_waited_for() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(1)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def read() -> float:
        with pytest.raises(ApiError) as refused:
            await read_object(Request({"type": "http", "method": "POST", "headers": []}, receive))
        assert (refused.value.status, refused.value.code) == (408, "body_too_slow")
        return asyncio.get_running_loop().time()

    assert run_virtual(read()) == pytest.approx(BODY_TIMEOUT_S)
