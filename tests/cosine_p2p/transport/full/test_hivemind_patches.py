"""The patches of hivemind: each is needed, since hivemind fails without it, and suffices."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any
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


def control_client(*, is_mended: bool) -> Any:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    control = ControlClient(None, _initialized_with_create=True)
    if is_mended:
        mend_calls(control)
    return control


async def read_answers(*, is_mended: bool) -> bytes:
    """The answer to a call, after one that comes too late for a cancelled call."""
    control = control_client(is_mended=is_mended)
    given_up, waiting = uuid4(), uuid4()
    for call_id in (given_up, waiting):
        control._pending_calls[call_id] = asyncio.Future()
    control._pending_calls[given_up].cancel()
    reader = asyncio.StreamReader()
    reader.feed_data(answer(given_up, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"late")))
    reader.feed_data(answer(waiting, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"in time")))
    reader.feed_eof()
    await control._read_from_persistent_conn(reader)
    return bytes(await control._pending_calls[waiting])


@in_real_time
async def test_an_answer_to_a_call_given_up_does_not_end_the_reading_of_answers() -> None:
    with pytest.raises(asyncio.InvalidStateError):
        await read_answers(is_mended=False)
    assert await read_answers(is_mended=True) == b"in time"


async def calls_kept(*, is_mended: bool) -> int:
    """How many calls are kept after a peer has cancelled its only one."""
    control, begun = control_client(is_mended=is_mended), asyncio.Event()

    async def wait_for_ever(data: bytes, peer_id: Any) -> bytes:
        begun.set()
        await asyncio.Future()
        return b""

    control.unary_handlers["find"] = wait_for_ever
    caller = PeerID.from_base58(identity_of(1).peer_id)
    request = p2pd_pb2.CallUnaryRequest(peer=caller.to_bytes(), proto="find", data=b"")
    call_id = uuid4()
    reader = asyncio.StreamReader()
    reading = asyncio.ensure_future(control._read_from_persistent_conn(reader))
    reader.feed_data(answer(call_id, requestHandling=request))
    await begun.wait()
    (handling,) = control._handler_tasks.values()
    reader.feed_data(answer(call_id, cancel=p2pd_pb2.Cancel()))
    reader.feed_eof()
    await reading
    await asyncio.wait([handling])
    await asyncio.sleep(0)
    assert handling.cancelled()
    return len(control._handler_tasks)


@in_real_time
async def test_a_call_that_a_peer_takes_back_is_forgotten() -> None:
    assert [await calls_kept(is_mended=is_mended) for is_mended in (False, True)] == [1, 0]


@in_real_time
async def test_a_peer_that_dies_before_its_stream_is_named_raises_nothing() -> None:
    control, reader = control_client(is_mended=True), asyncio.StreamReader()
    reader.feed_eof()
    closed: list[bool] = []
    writer: Any = SimpleNamespace(close=lambda: closed.append(True))
    with pytest.raises(EOFError):
        await control._handler(reader, writer)
    await handle_named(control, reader, writer)
    assert closed == [True]


@in_real_time
async def test_calls_that_are_open_end_with_their_daemon() -> None:
    control, call = control_client(is_mended=True), asyncio.Future[bytes]()
    control._pending_calls[uuid4()] = call
    p2p = P2P()
    p2p._client = SimpleNamespace(control=control, close=control.close)
    p2p._client_listen_maddr = {"unix": ""}
    await p2p.shutdown()
    assert not call.done()
    await end(p2p)
    with pytest.raises(P2PDaemonError, match="gone"):
        await call


def test_a_forked_child_does_not_end_its_parents_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    ended: list[str] = []
    monkeypatch.setattr(P2P, "_terminate", lambda p2p: ended.append(type(p2p).__name__))
    created: list[Any] = []
    plain, private = P2P(), p2p_class(tmp_path, created)()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    for p2p in (plain, private):
        p2p.__del__()
    assert (ended, created) == (["P2P"], [private])
    monkeypatch.setattr(os, "getpid", lambda: pid)
    private.__del__()
    assert ended == ["P2P", "PrivateP2P"]
