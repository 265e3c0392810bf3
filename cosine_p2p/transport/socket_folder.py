"""A private folder for a daemon's control sockets, and the sweeping of those that killed processes left behind."""

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

_PREFIX: Final = "cosine-p2p-"  # by which folders of killed processes are found
# A process that is just starting has its folder before its sockets.
_YOUNG_S: Final = 60.0


def make_socket_folder() -> Path:
    """A new folder only this user can enter: whoever reaches the control socket acts under our identity."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def sweep_socket_folders(*, now_s: float | None = None) -> int:
    """Remove this user's folders whose daemon is gone; returns how many. `now_s` is Unix time."""
    now_s = time.time() if now_s is None else now_s
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        if _is_abandoned(folder, now_s):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _is_abandoned(folder: Path, now_s: float) -> bool:
    try:
        status = folder.lstat()
        is_ours = folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid()
        return is_ours and now_s - status.st_mtime > _YOUNG_S and not any(map(_answers, folder.glob("*.sock")))
    except OSError:
        return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
