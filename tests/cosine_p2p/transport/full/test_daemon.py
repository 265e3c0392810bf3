"""p2pd: errors, and folders of dead daemons."""

import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cosine_p2p.transport.full.daemon import plain_reason
from cosine_p2p.transport.full.sockets import make_socket_folder, sweep_socket_folders


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_folders_are_private_and_dead_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
