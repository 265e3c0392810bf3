"""What p2pd answers, as a clause that a user understands; calls that are given up."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from cosine_p2p.transport.full.daemon import mend_calls, plain_reason
from tests.scenes import in_real_time


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("protocols not supported: [/cosine/draft/2.0.0]", "it does not serve /cosine/draft/2.0.0"),
        ("routing: not found", "no address of it is known in the network"),
        ("failed to dial: peer id mismatch: expected A, got B", "another peer answers at its address"),
        ("dial tcp4: connect: connection refused", "nothing listens at its address any more"),
        ("dial backoff", "it could not be reached a moment ago"),
        ("something\n  else", "something else"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_is_told_in_plain_words(error: str, reason: str) -> None:
    assert plain_reason(error) == reason


def answer(call_id: UUID, **fields: Any) -> bytes:
    """What p2pd sends over its connection for calls, as bytes."""
    from cosine_p2p.transport.full.library import p2pd_pb2

    message = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, **fields).SerializeToString()
    assert len(message) < 128
    return bytes([len(message)]) + bytes(message)


@pytest.mark.parametrize("kind", ["response", "error", "daemon"])
@in_real_time
async def test_an_answer_to_a_call_given_up_does_not_end_the_reading_of_answers(kind: str) -> None:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    from cosine_p2p.transport.full.library import p2pd_pb2

    control = ControlClient(None, _initialized_with_create=True)
    mend_calls(control)
    given_up, waiting = uuid4(), uuid4()
    for call_id in (given_up, waiting):
        control._pending_calls[call_id] = asyncio.Future()
    control._pending_calls[given_up].cancel()
    late = {
        "response": {"callUnaryResponse": p2pd_pb2.CallUnaryResponse(response=b"late")},
        "error": {"callUnaryResponse": p2pd_pb2.CallUnaryResponse(error=b"late")},
        "daemon": {"daemonError": p2pd_pb2.DaemonError(message="late")},
    }[kind]
    reader = asyncio.StreamReader()
    reader.feed_data(answer(given_up, **late))
    reader.feed_data(answer(waiting, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"in time")))
    reader.feed_eof()
    await control._read_from_persistent_conn(reader)
    assert await control._pending_calls[waiting] == b"in time"


@in_real_time
async def test_a_call_that_a_peer_takes_back_is_forgotten() -> None:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    from cosine_p2p.transport.full.library import PeerID, p2pd_pb2

    control = ControlClient(None, _initialized_with_create=True)
    mend_calls(control)
    begun = asyncio.Event()

    async def wait_for_ever(data: bytes, peer_id: Any) -> bytes:
        begun.set()
        await asyncio.Future()
        return b""

    control.unary_handlers["find"] = wait_for_ever
    caller = PeerID.from_base58("12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5")
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
    assert handling.cancelled() and not control._handler_tasks
