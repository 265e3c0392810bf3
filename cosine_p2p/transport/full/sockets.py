"""The Unix sockets of p2pd: a private folder for the control sockets, and a socket for each libp2p stream."""

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cosine_protocol.errors import PeerLost

READ_BYTES: Final = 64 << 10  # The maximum size of one read.
LINGER_S: Final = 1.0  # How long a closed stream sends its queued data.
_PREFIX: Final = "cosine-p2p-"  # Identifies the folders of killed processes.
_MOST_HOME_BYTES: Final = 56  # A socket's path has at most 103 bytes on macOS; ours add up to 47 to their parent.
_YOUNG_S: Final = 60.0  # A process that is starting creates its folder before its sockets.


def make_socket_folder() -> Path:
    """Create a folder that only this user can enter: the control socket acts under our identity."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=socket_home()))


def socket_home() -> Path:
    """The folder of temporary files, or /tmp if its path is too long."""
    home = Path(tempfile.gettempdir())
    return home if len(os.fsencode(home)) <= _MOST_HOME_BYTES else Path("/tmp")


def sweep_socket_folders(*, now_s: float | None = None) -> int:
    """Remove this user's folders without a running daemon, and return their number. `now_s` is Unix time."""
    now_s = time.time() if now_s is None else now_s
    removed = 0
    for folder in socket_home().glob(_PREFIX + "*"):
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


class SocketStream:
    """Implements `Stream`; `on_close` is called once, when our end is closed."""

    def __init__(
        self,
        peer_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_close: Callable[["SocketStream"], None],
    ) -> None:
        self.peer_id = peer_id
        self._reader = reader
        self._writer = writer
        self._on_close = on_close
        self._is_closed = False
        self._heard_at_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard_at_s

    async def read(self) -> bytes:
        try:
            data = b"" if self._is_closed else await self._reader.read(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.close()
        else:
            self._heard_at_s = time.monotonic()
        return data

    async def write(self, data: bytes) -> None:
        if not self._is_closed:
            try:
                self._writer.write(data)
                await self._writer.drain()
            except OSError as error:
                self.close()
                raise PeerLost(self.peer_id, f"the stream broke ({error})") from None
        if self._is_closed:
            raise PeerLost(self.peer_id, "the stream is closed")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        transport = self._writer.transport
        # A closing transport first sends its backlog, which takes forever if the peer reads nothing.
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        self._writer.close()
        self._reader.feed_eof()
        self._on_close(self)

    def note_flood(self) -> None:
        return

    def abort(self) -> None:
        self._writer.transport.abort()
        self.close()
