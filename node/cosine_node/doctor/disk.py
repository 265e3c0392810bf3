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


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder somebody writes to, which need not exist yet."""

    purpose: str
    path: Path
    free_bytes: int
    is_writable: bool
    variable: str
    """The environment variable that moves it."""


def look_at(purpose: str, path: Path, variable: str) -> Folder:
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    is_writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return Folder(purpose=purpose, path=path, free_bytes=free, is_writable=is_writable, variable=variable)


def written_folders() -> list[Folder]:
    """Where identities, digests, models and sockets are kept."""
    cache = Path(user_cache_dir())
    models = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub"
    )
    return [
        look_at("data", Path(user_data_dir("cosine-p2p")), "XDG_DATA_HOME"),
        look_at("cache", cache / "cosine-p2p", "XDG_CACHE_HOME"),
        look_at("models", models, "HF_HOME"),
        look_at("sockets", Path(tempfile.gettempdir()), "TMPDIR"),
    ]


def judge_folder(folder: Folder, *, download_bytes: int) -> Finding:
    """Whether what is written to a folder fits; `download_bytes` of models come on top where models are kept."""
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
