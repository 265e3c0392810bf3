"""The weights that a drafter has learned: whole folders by number, and the word which of them serves.

Whatever moment the process is killed at, the next start finds one version whole: a folder gets its name when all in
it is on disk, and the word is replaced as a whole.
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
"""The folder of the versions, `0001` and so on; one that is being written ends in `.partial`."""
PARTIAL: Final = ".partial"
MANIFEST: Final = "version.json"
"""The file of a version that lists the others in it, by their digests."""
LIVE: Final = "live"
"""The file that says which version serves."""
SHIPPED: Final = 0
"""The number of the model as its volunteer named it, which is no folder here."""
KEPT: Final = 3
"""Enough to go back once more after going back."""
MAX_JSON_BYTES: Final = 1 << 20
"""Far above what is written here: a larger file is not ours."""
LOG = logging.getLogger(__name__)


class DamagedVersion(Exception):
    """A folder of a version is not whole: something in it is missing, added or changed."""


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """Weights that were learned. `digest` is over all files of the folder, as hex."""

    number: int
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """The word which version serves, `SHIPPED` for none, and the domains that are announced with it besides."""

    number: int
    digest: str = ""
    expertise: tuple[str, ...] = ()


class Versions:
    """The versions in a folder. One process at a time writes; the methods that read may be used by any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[int]:
        """The numbers of the versions that are there, whole or not, the oldest first."""
        return sorted(int(path.name) for path in self._paths() if path.name.isdecimal())

    def path(self, number: int, suffix: str = "") -> Path:
        """The folder of a version, whole or not; with a suffix one on its way in or out."""
        return self._folder / VERSIONS / f"{number:04d}{suffix}"

    def find(self, number: int) -> WeightVersion:
        """A version by its number. Raises `DamagedVersion` if it is not whole or not there."""
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
        """The version that serves, None for the model as shipped.

        Where the one that the file names is not whole, that is the newest whole one.
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
        """What the file says that serves; the model as shipped where there is none or it says nothing."""
        match _read_object(self._folder / LIVE):
            case {"version": int(number), "digest": str(digest), "expertise": list(expertise)} if number >= 0:
                return LiveVersion(number, digest, tuple(map(str, expertise)))
        # Somebody has damaged the file: it is never there in part.
        if (self._folder / LIVE).exists() and (numbers := self.all()):
            return LiveVersion(numbers[-1])
        return LiveVersion(SHIPPED)

    def begin(self, number: int) -> Path:
        """An empty folder to write a version into; those that were never finished are deleted."""
        self.drop_unfinished()
        folder = self.path(number, PARTIAL)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def drop_unfinished(self) -> None:
        """Delete what was begun and never finished."""
        for path in self._paths():
            if path.name.endswith(PARTIAL):
                shutil.rmtree(path)

    def finish(self, number: int) -> WeightVersion:
        """Give the version that was begun its name, once all of it is on disk."""
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
        """Let a version serve from the next start on, whatever happens."""
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
        """Delete a version: first its name, so that no part of it is ever taken for it."""
        path = self.path(number)
        if path.exists():
            gone = self.path(number, f".dropped{PARTIAL}")
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(path, gone)
            shutil.rmtree(gone)

    def forget(self) -> None:
        """Delete all versions: the model as shipped serves from the next start on."""
        self.switch(LiveVersion(SHIPPED))
        shutil.rmtree(self._folder / VERSIONS, ignore_errors=True)

    def _paths(self) -> Iterator[Path]:
        folder = self._folder / VERSIONS
        return iter(sorted(folder.iterdir()) if folder.is_dir() else ())


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of all files below a folder but the manifest, as hex, by their relative paths. Raises `OSError`."""
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
    """The JSON object in a file; an empty one where there is none."""
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
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
