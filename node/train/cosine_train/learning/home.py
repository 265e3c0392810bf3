"""The folder that a drafter learns in: one for each identity, model and target, in the project's state folder."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from platformdirs import user_state_dir

from cosine_p2p.storage.state_file import StateFile

ABOUT: Final = "about.json"
"""The file with the peer id, model and target of a folder, for `cosine-node learned`."""
MAX_STATE_BYTES: Final = 1 << 16
"""Far above the few fields that are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerHome:
    """The folder of one learner, and its initial model.

    `shipped` is the folder of the model as its volunteer named it, `kind` the type of its weights if that is a GGUF
    file, `target` the folder of the target's tokenizer, `expertise` the domains that the volunteer announces. The
    streams take at most `max_bytes`.
    """

    folder: Path
    model_name: str
    shipped: Path
    kind: str | None
    target: Path
    expertise: tuple[str, ...]
    max_bytes: int


@cache
def state_file(folder: Path, name: str) -> StateFile:
    """Return a JSON file in the folder of a learner."""
    return StateFile(name, max_bytes=MAX_STATE_BYTES, file=folder / name)


def all_homes() -> Path:
    """Return the folder of all learners of this user."""
    return Path(user_state_dir("cosine-p2p")) / "learned"


def home_folder(*, peer_id: str, model_name: str, content_digest: bytes, target_digest: bytes) -> Path:
    """Return the folder of one learner; other weights or another target have another."""
    key = json.dumps([peer_id, model_name, content_digest.hex(), target_digest.hex()])
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower()).strip("-")[-40:]
    return all_homes() / f"{name}-{blake2b(key.encode(), digest_size=6).hexdigest()}"


def write_about(folder: Path, *, peer_id: str, model_name: str, target_name: str) -> None:
    """Write the peer id, model and target of a folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fields = {"peer_id": peer_id, "model": model_name, "target": target_name}
    state_file(folder, ABOUT).write(fields)


def find_homes(folder: Path | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folders of learners, each with the object of its `ABOUT`."""
    folder = folder or all_homes()
    for home in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (home / ABOUT).is_file():
            yield home, state_file(home, ABOUT).read()
