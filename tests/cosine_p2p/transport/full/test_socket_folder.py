"""Sweeping removes what killed processes left, and nothing that may be alive."""

import os
import socket
import stat
import tempfile
import time
from pathlib import Path

import pytest

from cosine_p2p.transport.full.sockets import make_socket_folder, sweep_socket_folders


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def abandoned() -> Path:
    folder = make_socket_folder()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "p2pd.sock"))
    return folder


def test_a_folder_is_private() -> None:
    assert stat.S_IMODE(make_socket_folder().stat().st_mode) == 0o700


def test_a_dead_daemons_folder_is_removed_once_it_is_old() -> None:
    folder = abandoned()
    assert sweep_socket_folders() == 0
    assert sweep_socket_folders(now_s=time.time() + 100) == 1
    assert not folder.exists()


def test_a_living_daemons_folder_stays() -> None:
    folder = make_socket_folder()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(folder / "p2pd.sock"))
        alive.listen()
        assert sweep_socket_folders(now_s=time.time() + 100) == 0
    assert folder.exists()


def test_links_and_other_names_stay(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "cosine-p2p-link")
    (tmp_path / "cosine-other").mkdir()
    assert sweep_socket_folders(now_s=time.time() + 100) == 0
