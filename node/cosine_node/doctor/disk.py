"""Room on disk, in the folders that a node or client writes to."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir, user_data_dir

from cosine_node.doctor.finding import Finding, failure, fine

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
