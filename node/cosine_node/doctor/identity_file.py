"""A node's key file: there or creatable, private, whole, and not in use."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosine_node.doctor.disk import existing_ancestor, is_writable_folder
from cosine_node.doctor.finding import Finding, failure, fine, warning
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

WHAT: Final = "identity"
"""The name of the check."""

OTHER_FILE: Final = "name another file with --identity"
"""What always helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A key file as found. `is_creatable` is about one that is not there, everything below about one that is."""

    file: Path
    is_named: bool
    is_there: bool
    is_creatable: bool = False
    error: str = ""
    damage: str = ""
    mode: int = 0o600
    is_in_use: bool = False
    peer_id: str = ""


def read_key_file(file: Path, *, is_named: bool) -> KeyFile:
    """Read without creating or changing anything; a node that starts in the same instant may find it in use."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        data = file.read_bytes()
    except FileNotFoundError:
        is_creatable = is_writable_folder(existing_ancestor(file.parent))
        return KeyFile(file=file, is_named=is_named, is_there=False, is_creatable=is_creatable)
    except OSError as error:
        return KeyFile(file=file, is_named=is_named, is_there=True, error=error.strerror or str(error))
    try:
        peer_id, damage = Identity.from_file_bytes(data).peer_id, ""
    except UsageError as error:
        peer_id, damage = "", str(error)
    return KeyFile(
        file=file,
        is_named=is_named,
        is_there=True,
        damage=damage,
        mode=mode,
        is_in_use=_is_locked(file),
        peer_id=peer_id,
    )


def _is_locked(file: Path) -> bool:
    """True if a running node holds the lock of its key file."""
    try:
        import fcntl
    except ModuleNotFoundError:
        # Windows: no node runs there.
        return False
    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def judge_key_file(key: KeyFile) -> Finding:
    """Judge whether a node can use a key file, and only that node."""
    file = key.file
    if not key.is_there:
        if key.is_creatable:
            return fine(WHAT, f"{file} is created at the first start")
        return failure(WHAT, f"{file} cannot be created there", f"Make its folder writable, or {OTHER_FILE}.")
    if key.error:
        return failure(
            WHAT, f"{file} cannot be read: {key.error}", f"Allow it: `chmod 600 {file}`, or {OTHER_FILE}."
        )
    if key.damage:
        fix = f"Restore it from a copy, or {OTHER_FILE}; a new one is another peer id."
        return failure(WHAT, f"{file}: {key.damage}", fix)
    if key.is_in_use and key.is_named:
        fix = "Stop the other node, or give this one a key file of its own with --identity."
        return failure(WHAT, f"{file} is in use by a running node, {key.peer_id}", fix)
    if key.mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"Keep it to yourself: `chmod 600 {file}`."
        return warning(WHAT, f"others on this machine may read or write {file} (mode {key.mode:03o})", fix)
    if key.is_in_use:
        return fine(WHAT, f"{key.peer_id} is in use by a running node; another one takes the next free identity")
    return fine(WHAT, key.peer_id)
