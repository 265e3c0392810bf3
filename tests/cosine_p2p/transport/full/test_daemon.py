"""p2pd: reasons in plain words, calls given up, folders left behind, and the start of a relay."""

import asyncio
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from cosine_p2p.transport.full.daemon import mend_calls, plain_reason
from cosine_p2p.transport.full.relay import CIRCUIT_BYTES, MAX_STARTS, start_relay
from cosine_p2p.transport.full.sockets import make_socket_folder, sweep_socket_folders
from cosine_protocol.errors import PeerLost
from tests.scenes import in_real_time


def answer(call_id: UUID, **fields: Any) -> bytes:
    """What p2pd sends over its connection for calls, as bytes."""
    from cosine_p2p.transport.full.library import p2pd_pb2

    message = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, **fields).SerializeToString()
    assert len(message) < 128
    return bytes([len(message)]) + bytes(message)


def mended() -> Any:
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    control = ControlClient(None, _initialized_with_create=True)
    mend_calls(control)
    return control


@pytest.mark.parametrize("kind", ["response", "error", "daemon"])
@in_real_time
async def test_an_answer_to_a_call_given_up_does_not_end_the_reading_of_answers(kind: str) -> None:
    from cosine_p2p.transport.full.library import p2pd_pb2

    control = mended()
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
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_folders_are_private_and_only_those_of_dead_daemons_are_swept(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = short_path
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


DEFAULT_BYTES = 128 << 10


@dataclass(slots=True)
class Starts:
    """Daemons that grant the given bytes one after the other, the last for ever; an error among them is raised."""

    granted: list[int | BaseException | None]
    open: list[int] = field(default_factory=list)
    made: int = 0

    async def start(self) -> "FakeDaemon":
        self.made += 1
        if not self.granted:
            raise PeerLost("12D3", "no answer from there")
        self.open.append(self.made)
        return FakeDaemon(self, self.made)

    async def ask(self, daemon: "FakeDaemon") -> int | None:
        granted = self.granted[min(daemon.number, len(self.granted)) - 1]
        if isinstance(granted, BaseException):
            raise granted
        return granted


@dataclass(slots=True)
class FakeDaemon:
    starts: Starts
    number: int

    async def close(self) -> None:
        self.starts.open.remove(self.number)


@pytest.mark.parametrize(
    ("granted", "made", "stays", "warnings"),
    [
        ([DEFAULT_BYTES, DEFAULT_BYTES, CIRCUIT_BYTES], 3, 1, 0),
        ([DEFAULT_BYTES], MAX_STARTS, 1, 1),
        ([None], 1, 1, 1),
        ([asyncio.CancelledError()], 1, 0, 0),
        ([], 1, 0, 0),
    ],
    ids=["the third is good", "none is", "unknown", "asking is given up", "none starts"],
)
def test_a_relay_is_started_until_it_lets_enough_through_and_never_for_ever(
    granted: list[int | BaseException | None],
    made: int,
    stays: int,
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = Starts(granted)
    try:
        asyncio.run(start_relay(cast(Any, starts.start), cast(Any, starts.ask)))
    except (asyncio.CancelledError, PeerLost):
        assert not stays
    assert (starts.made, starts.open) == (made, [made] * stays)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warnings


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
        (
            "failed to negotiate security protocol: x509: certificate has expired or is not yet valid",
            "its certificate is not valid yet by this machine's clock, which is behind",
        ),
        ("failed to negotiate security protocol: unexpected EOF", "what listens at its address is no peer"),
        ("dial tcp4: connect: connection refused", "nothing listens at its address any more"),
        ("dial backoff", "it could not be reached a moment ago"),
        ("something\n  else", "something else"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_is_told_in_plain_words(error: str, reason: str) -> None:
    assert plain_reason(error) == reason
