"""A small JSON file in the user's state folder, with bounded reads and atomic writes."""

import json
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_state_dir

logger = logging.getLogger(__name__)


class StateFile:
    """The file `name` in the state folder, or `file`, of at most `max_bytes`."""

    def __init__(self, name: str, *, max_bytes: int, file: Path | None = None) -> None:
        self.path = file or state_folder() / name
        self._max_bytes = max_bytes
        self._has_logged = False
        self._cannot_write = False

    def read(self) -> dict[str, Any]:
        """Read the object; an empty one if the file is missing, broken or too large, which is logged once."""
        value = None
        try:
            if self.path.stat().st_size <= self._max_bytes:
                value = json.loads(self.path.read_text("utf-8"))
        except OSError:
            return {}
        except (ValueError, RecursionError) as error:
            logger.debug("%s: %s", self.path, error)
        if isinstance(value, dict):
            return value
        if not self._has_logged:
            self._has_logged = True
            logger.warning("%s is broken and counts as empty; what is noted next replaces it", self.path)
        return {}

    def write(self, value: dict[str, Any]) -> None:
        """Replace the file; if that fails it stays unchanged, which is logged once."""
        try:
            replace_text(self.path, json.dumps(value))
        except OSError as error:
            if not self._cannot_write:
                sentence = "%s cannot be written (%s) and stays as it was; what is noted next is tried again"
                logger.warning(sentence, self.path, error.strerror or error)
            self._cannot_write = True
        else:
            self._cannot_write = False


def state_folder() -> Path:
    return Path(user_state_dir("cosine-p2p"))


def replace_text(file: Path, text: str) -> None:
    """Replace a file atomically, as UTF-8. Raises `OSError`."""
    replace_bytes(file, text.encode())


def replace_bytes(file: Path, data: bytes) -> None:
    """Replace a file atomically; of two concurrent writers one wins. Raises `OSError`."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        os.replace(draft, file)
    except OSError:
        with suppress(OSError):
            # A full disk may contain a partial draft.
            draft.unlink(missing_ok=True)
        raise
