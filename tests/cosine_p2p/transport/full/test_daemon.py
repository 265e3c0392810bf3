"""p2pd: errors, cancelled calls, and folders of dead daemons."""

import asyncio
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cosine_p2p.transport.full.daemon import mend_calls, plain_reason
from cosine_p2p.transport.full.sockets import make_socket_folder, sweep_socket_folders
from tests.scenes import in_real_time


def answer(call_id: UUID, **fields: Any) -> bytes:
    from cosine_p2p.transport.full.library import p2pd_pb2

    message = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, **fields).SerializeToString()
    assert len(message) < 128
    return bytes([len(message)]) + bytes(message)


def mended() -> Any:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    control = ControlClient(None, _initialized_with_create=True)
    mend_calls(control)
    return control


@in_real_time
async def test_an_answer_to_a_call_given_up_does_not_end_the_reading_of_answers() -> None:
    from cosine_p2p.transport.full.library import p2pd_pb2

    control = mended()
    given_up, waiting = uuid4(), uuid4()
    for call_id in (given_up, waiting):
        control._pending_calls[call_id] = asyncio.Future()
    control._pending_calls[given_up].cancel()
    reader = asyncio.StreamReader()
    reader.feed_data(answer(given_up, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"late")))
    reader.feed_data(answer(waiting, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"in time")))
    reader.feed_eof()
    await control._read_from_persistent_conn(reader)
    assert await control._pending_calls[waiting] == b"in time"


@in_real_time
async def test_a_call_that_a_peer_takes_back_is_forgotten() -> None:
    from cosine_p2p.transport.full.library import PeerID, p2pd_pb2

    control, begun = mended(), asyncio.Event()

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


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_folders_are_private_and_only_those_of_dead_daemons_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, living = make_socket_folder(), make_socket_folder()
    assert stat.S_IMODE(living.stat().st_mode) == 0o700
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "cosine-p2p-link")
    (tmp_path / "cosine-other").mkdir()
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind(str(abandoned / "p2pd.sock"))
        dead.close()
        alive.bind(str(living / "p2pd.sock"))
        alive.listen()
        assert sweep_socket_folders() == 0
        assert sweep_socket_folders(now_s=time.time() + 100) == 1
    left = {living.name, "elsewhere", "cosine-p2p-link", "cosine-other"}
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("protocols not supported: [/cosine/draft/2.0.0]", "it does not serve /cosine/draft/2.0.0"),
        ("routing: not found", "no address of it is known in the network"),
        (
            "failed to negotiate security protocol: peer id mismatch: expected A, but remote key matches B\n"
            " * [/ip4/192.0.2.2/tcp/1] dial backoff",
            "another peer answers at its address, B",
        ),
        ("dial tcp4: connect: connection refused", "nothing listens at its address any more"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_becomes_a_plain_reason(error: str, reason: str) -> None:
    assert plain_reason(error) == reason
