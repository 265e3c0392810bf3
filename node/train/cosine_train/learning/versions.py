"""The weights that a drafter has learned: a folder per version, and a file that names the live one.

If the process is killed at any moment, the next start finds one complete version: a folder gets its name when all
its files are on disk, and the file that names the live version is replaced atomically.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

VERSIONS: Final = "versions"
"""The folder of the versions, `0001` and so on; an unfinished one ends in `.partial`."""
PARTIAL: Final = ".partial"
MANIFEST: Final = "version.json"
"""The file of a version that lists the digests of its other files."""
LIVE: Final = "live"
"""The file that names the version that serves."""
SHIPPED: Final = 0
"""The number of the model as its volunteer named it, without a folder here."""
KEPT: Final = 3
"""Enough for a second rollback after the first."""
MAX_JSON_BYTES: Final = 1 << 20
"""Far above the size of any file written here."""
LOG = logging.getLogger(__name__)


class DamagedVersion(Exception):
    """The folder of a version is incomplete: a file is missing, added or changed."""


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """Learned weights. `digest` is over all files of the folder, as hex."""

    number: int
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """The version that serves, `SHIPPED` for none, and its added domains."""

    number: int
    digest: str = ""
    expertise: tuple[str, ...] = ()


class Versions:
    """The versions in a folder. One process at a time may write; any may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[int]:
        """Return the numbers of the versions, complete or not, oldest first."""
        return sorted(int(path.name) for path in self._paths() if path.name.isdecimal())

    def path(self, number: int, suffix: str = "") -> Path:
        """Return the folder of a version; with a suffix, of one being written or deleted."""
        return self._folder / VERSIONS / f"{number:04d}{suffix}"

    def find(self, number: int) -> WeightVersion:
        """Return a version by its number. Raises `DamagedVersion` if it is incomplete or missing."""
        folder = self.path(number)
        manifest = _read_object(folder / MANIFEST)
        try:
            digests = _digests(folder)
        except OSError as error:
            raise DamagedVersion(f"{folder} cannot be read: {error}") from None
        if not digests or manifest.get("files") != digests:
            raise DamagedVersion(f"{folder} is not whole")
        return WeightVersion(number, folder, _digest_of(digests))

    def live(self) -> tuple[LiveVersion, WeightVersion | None]:
        """Return the version that serves, None for the model as shipped.

        If the version that the file names is incomplete, that is the newest complete one.
        """
        word = self.word()
        if word.number == SHIPPED:
            return word, None
        for number in (word.number, *reversed(self.all())):
            try:
                found = self.find(number)
            except DamagedVersion as error:
                LOG.warning("%s; another version serves", error)
                continue
            if number != word.number:
                return LiveVersion(number, found.digest), found
            if word.digest in ("", found.digest):
                return LiveVersion(number, found.digest, word.expertise), found
        return LiveVersion(SHIPPED), None

    def word(self) -> LiveVersion:
        """Return the version that the file names; the model as shipped without a file."""
        match _read_object(self._folder / LIVE):
            case {"version": int(number), "digest": str(digest), "expertise": list(expertise)} if number >= 0:
                return LiveVersion(number, digest, tuple(map(str, expertise)))
        # The file is damaged: it is never written in part.
        if (self._folder / LIVE).exists() and (numbers := self.all()):
            return LiveVersion(numbers[-1])
        return LiveVersion(SHIPPED)

    def begin(self, number: int) -> Path:
        """Return an empty folder to write a version into, and delete unfinished ones."""
        self.drop_unfinished()
        folder = self.path(number, PARTIAL)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def drop_unfinished(self) -> None:
        """Delete unfinished versions."""
        for path in self._paths():
            if path.name.endswith(PARTIAL):
                shutil.rmtree(path)

    def finish(self, number: int) -> WeightVersion:
        """Rename the version that was begun, once all its files are on disk."""
        partial, folder = self.path(number, PARTIAL), self.path(number)
        digests = _digests(partial)
        for name in digests:
            _sync(partial / name)
        _write(partial / MANIFEST, {"files": digests})
        for inside in [path for path in partial.rglob("*") if path.is_dir()]:
            _sync(inside)
        _sync(partial)
        os.rename(partial, folder)
        _sync(folder.parent)
        return WeightVersion(number, folder, _digest_of(digests))

    def switch(self, word: LiveVersion) -> None:
        """Name the version that serves from the next start on."""
        draft = self._folder / f".{LIVE}{PARTIAL}"
        fields = {"version": word.number, "digest": word.digest, "expertise": list(word.expertise)}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(draft, fields)
        os.replace(draft, self._folder / LIVE)
        _sync(self._folder)

    def keep_newest(self, *, live: int) -> None:
        """Delete all but the last few versions and the live one."""
        numbers = self.all()
        for number in set(numbers) - set(numbers[-KEPT:]) - {live}:
            self.drop(number)

    def drop(self, number: int) -> None:
        """Delete a version: it is renamed first, so that no part is ever loaded."""
        path = self.path(number)
        if path.exists():
            gone = self.path(number, f".dropped{PARTIAL}")
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(path, gone)
            shutil.rmtree(gone)

    def forget(self) -> None:
        """Delete all versions; the model as shipped serves from the next start on."""
        self.switch(LiveVersion(SHIPPED))
        shutil.rmtree(self._folder / VERSIONS, ignore_errors=True)

    def _paths(self) -> Iterator[Path]:
        folder = self._folder / VERSIONS
        return iter(sorted(folder.iterdir()) if folder.is_dir() else ())


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 in hex of all files but the manifest by relative path. Raises `OSError`."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            with path.open("rb") as file:
                digest = sha256()
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            digests[path.relative_to(folder).as_posix()] = digest.hexdigest()
    return digests


def _digest_of(digests: dict[str, str]) -> str:
    return sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one."""
    try:
        value = json.loads(path.read_text("utf-8")) if path.stat().st_size <= MAX_JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, fields: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(fields, file)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
