"""The patches of hivemind."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from cosine_p2p.transport.full.hivemind_patches import end, handle_named, mend_calls, p2p_class
from cosine_p2p.transport.full.library import P2P, P2PDaemonError, PeerID, p2pd_pb2
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_real_time


def answer(call_id: UUID, **fields: Any) -> bytes:
    message = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, **fields).SerializeToString()
    assert len(message) < 128
    return bytes([len(message)]) + bytes(message)


def control_client() -> Any:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    control = ControlClient(None, _initialized_with_create=True)
    mend_calls(control)
    return control


@in_real_time
async def test_a_late_answer_to_a_cancelled_call_does_not_end_the_reading_of_answers() -> None:
    control, reader = control_client(), asyncio.StreamReader()
    cancelled, waiting = uuid4(), uuid4()
    for call_id in (cancelled, waiting):
        control._pending_calls[call_id] = asyncio.Future()
        reader.feed_data(answer(call_id, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"in time")))
    control._pending_calls[cancelled].cancel()
    reader.feed_eof()
    await control._read_from_persistent_conn(reader)
    assert await control._pending_calls[waiting] == b"in time"


@in_real_time
async def test_a_call_that_a_peer_cancels_is_forgotten() -> None:
    control, reader, begun = control_client(), asyncio.StreamReader(), asyncio.Event()

    async def wait_for_ever(data: bytes, peer_id: Any) -> bytes:
        begun.set()
        await asyncio.Future()
        return b""

    control.unary_handlers["find"] = wait_for_ever
    caller = PeerID.from_base58(identity_of(1).peer_id)
    request = p2pd_pb2.CallUnaryRequest(peer=caller.to_bytes(), proto="find", data=b"")
    call_id = uuid4()
    reading = asyncio.ensure_future(control._read_from_persistent_conn(reader))
    reader.feed_data(answer(call_id, requestHandling=request))
    await begun.wait()
    (handling,) = control._handler_tasks.values()
    reader.feed_data(answer(call_id, cancel=p2pd_pb2.Cancel()))
    reader.feed_eof()
    await reading
    await asyncio.wait([handling])
    await asyncio.sleep(0)
    assert handling.cancelled() and not control._handler_tasks


@in_real_time
async def test_a_peer_that_dies_before_its_stream_is_named_raises_nothing() -> None:
    reader, closed = asyncio.StreamReader(), list[bool]()
    reader.feed_eof()
    await handle_named(control_client(), reader, cast(Any, SimpleNamespace(close=lambda: closed.append(True))))
    assert closed == [True]


@in_real_time
async def test_calls_that_are_open_end_with_their_daemon() -> None:
    control, call = control_client(), asyncio.Future[bytes]()
    control._pending_calls[uuid4()] = call
    p2p = P2P()
    p2p._client = SimpleNamespace(control=control, close=control.close)
    p2p._client_listen_maddr = {"unix": ""}
    await end(p2p)
    with pytest.raises(P2PDaemonError, match="gone"):
        await call


def test_a_forked_child_does_not_end_its_parents_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    ended: list[P2P] = []
    monkeypatch.setattr(P2P, "_terminate", lambda p2p: ended.append(p2p))
    p2p = p2p_class(tmp_path, [])()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    p2p.__del__()
    assert ended == []
    monkeypatch.setattr(os, "getpid", lambda: pid)
    p2p.__del__()
    assert ended == [p2p]
