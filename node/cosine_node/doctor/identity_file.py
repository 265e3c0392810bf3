"""A node's key file: there or creatable, private, whole, and not in use."""

import stat
from pathlib import Path

from cosine_node.doctor.disk import existing_ancestor, is_writable_folder
from cosine_node.doctor.finding import Finding, failure, fine, warning
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity


def judge_key_file(file: Path, *, is_named: bool) -> Finding:
    """Judge whether a node can use a key file, and only that node. Creates and changes nothing.

    A file that the user did not name may be in use: then a node takes the next free one. A node that starts in the
    same instant may find the file in use.
    """
    what = "identity"
    other_file = "name another file with --identity"
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        peer_id = Identity.from_file_bytes(file.read_bytes()).peer_id
    except FileNotFoundError:
        if is_writable_folder(existing_ancestor(file.parent)):
            return fine(what, f"{file} is created at the first start")
        return failure(what, f"{file} cannot be created there", f"Make its folder writable, or {other_file}.")
    except OSError as error:
        fix = f"Allow it: `chmod 600 {file}`, or {other_file}."
        return failure(what, f"{file} cannot be read: {error.strerror or error}", fix)
    except UsageError as error:
        fix = f"Restore it from a copy, or {other_file}; a new one is another peer id."
        return failure(what, f"{file}: {error}", fix)
    is_in_use = _is_locked(file)
    if is_in_use and is_named:
        fix = "Stop the other node, or give this one a key file of its own with --identity."
        return failure(what, f"{file} is in use by a running node, {peer_id}", fix)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"Keep it to yourself: `chmod 600 {file}`."
        return warning(what, f"others on this machine may read or write {file} (mode {mode:03o})", fix)
    if is_in_use:
        return fine(what, f"{peer_id} is in use by a running node; another one takes the next free identity")
    return fine(what, peer_id)


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
