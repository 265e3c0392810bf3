"""Room on disk, in the folders that a node or client writes to."""

import os
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir, user_data_dir

from cosine_node.doctor.finding import Finding, failure, fine, warning
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

LEAST_BYTES: Final = 200 << 20
"""A choice: far more than keys, digests and sockets take, with room for the files of a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that a node or client writes to, which need not exist yet."""

    purpose: str
    path: Path
    free_bytes: int
    is_writable: bool
    variable: str
    """The environment variable that moves it."""


def existing_ancestor(path: Path) -> Path:
    """The nearest folder to `path` that exists: itself, or where it would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def is_writable_folder(path: Path) -> bool:
    """True if a file can be put there."""
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def inspect_folder(purpose: str, path: Path, variable: str) -> Folder:
    """Look at a folder, or at the one it would be made in."""
    existing = existing_ancestor(path)
    return Folder(
        purpose=purpose,
        path=path,
        free_bytes=shutil.disk_usage(existing).free,
        is_writable=is_writable_folder(existing),
        variable=variable,
    )


def written_folders() -> list[Folder]:
    """The folders in which identities, digests, models and sockets are kept."""
    cache = Path(user_cache_dir())
    models = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub"
    )
    return [
        inspect_folder("data", Path(user_data_dir("cosine-p2p")), "XDG_DATA_HOME"),
        inspect_folder("cache", cache / "cosine-p2p", "XDG_CACHE_HOME"),
        inspect_folder("models", models, "HF_HOME"),
        inspect_folder("sockets", Path(tempfile.gettempdir()), "TMPDIR"),
    ]


def judge_folder(folder: Folder, *, download_bytes: int) -> Finding:
    """Judge whether what is written to a folder fits; where models are kept, with `download_bytes` of models."""
    what = f"disk for {folder.purpose}"
    if not folder.is_writable:
        fix = f"Make it writable, or set {folder.variable} to another place."
        return failure(what, f"{folder.path} cannot be written to", fix)
    least = LEAST_BYTES + (download_bytes if folder.purpose == "models" else 0)
    found = f"{folder.free_bytes / 2**30:.1f} GiB free for {folder.path}"
    if folder.free_bytes < least:
        fix = f"Free {(least - folder.free_bytes) / 2**30:.1f} GiB, or set {folder.variable} to another disk."
        return failure(what, found, fix)
    return fine(what, found)


# --------------------
# A node's key file: there or creatable, private, whole, and not in use.


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


# --------------------
# The configuration file: it can be read, and every name in it means something.


def judge_configuration(file: Path, *, is_named: bool, unknown: Sequence[str]) -> Finding:
    """Judge a configuration file, which has to be there if the user named it.

    `unknown` are the names in the file that no command has.
    """
    what = "configuration"
    try:
        tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if is_named:
            return failure(what, f"there is no file {file}", "Correct --config, or drop it to use no file.")
        return fine(what, f"no {file}; options come from the command line and the environment")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return failure(what, f"{file} cannot be read: {reason}", "Correct it, or name another with --config.")
    if unknown:
        fix = f"Correct or remove it in {file}; `cosine-node COMMAND --help` lists the options."
        return warning(what, f"{', '.join(unknown)} means nothing to any command", fix)
    return fine(what, f"{file} is read")
