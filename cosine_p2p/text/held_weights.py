"""The local part of a model: its manifest, its small files, and all or some of its tensors."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import is_gguf, read_header
from cosine_p2p.request.generation_config import FILE_NAME as GENERATION_CONFIG
from cosine_p2p.storage.bounded_file import read_bounded
from cosine_p2p.text.tensor_hashes import HashCache, HashedTensor
from cosine_p2p.text.tokenizer_files import ADDITIONAL_TEMPLATES, NAMES, names_in
from cosine_p2p.text.tokenizer_sources import MODEL_CONFIG, OTHER_NAMES, TIKTOKEN, TOKENIZER, other_names
from cosine_protocol.errors import LocalProtocolError, MalformedMessage, UsageError
from cosine_protocol.fields import MAX_FILE_BYTES
from cosine_protocol.weights import MAX_MANIFEST_BYTES, Manifest, ManifestPart, manifest_digest

MANIFEST: Final = "weights.manifest"  # The manifest file in a folder with a part of a model.
GGUF_LINK: Final = "model.gguf"  # The link to a GGUF file in its folder (`gguf_folder`).
METADATA: Final = "metadata"  # The only part of a GGUF file's model.
_DESCRIBING: Final = ("general.", "quantize.", "split.")  # Prefixes of metadata keys without effect on texts.
_DECISIVE: Final = ("general.architecture", "general.sampling.")  # Exceptions among those.
_PART: Final = re.compile(
    rf"\w[\w.-]{{0,199}}{re.escape(TIKTOKEN)}|{ADDITIONAL_TEMPLATES}\w[\w.-]{{0,199}}\.jinja", re.A
)


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A local tensor and its file."""

    file: Path
    tensor: HashedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeights:
    """A model by content. `parts` are the small files by name, `tensors` the local ones."""

    manifest: Manifest
    encoded: bytes = field(repr=False)
    parts: Mapping[str, bytes] = field(repr=False)
    tensors: Mapping[str, PlacedTensor] = field(repr=False)

    @property
    def content_digest(self) -> bytes:
        return manifest_digest(self.encoded)

    @property
    def is_whole(self) -> bool:
        return len(self.tensors) == len(self.manifest.tensors)

    @classmethod
    def read(cls, path: Path, *, cache_folder: Path | None = None) -> "HeldWeights":
        """Read those of a GGUF file, or of a model's folder (config.json and *.safetensors).

        A manifest in the folder is checked. Hashes of tensors are cached by path, size and mtime. Raises
        `UsageError` without such a model, or if it differs from the manifest.
        """
        cache = HashCache(cache_folder)
        if path.is_file() and is_gguf(path):
            return cls._of_gguf(path, cache)
        if (path / MANIFEST).is_file():
            return cls._of_part(path, cache)
        files = sorted(path.glob("*.safetensors"))
        if not files and (path / GGUF_LINK).is_file():
            return cls._of_gguf(path / GGUF_LINK, cache)
        if not (path / MODEL_CONFIG).is_file() or not files:
            raise UsageError(f"{path} is not a model folder: it needs config.json and *.safetensors files.")
        parts = {name: _read_part(path / name) for name in part_names(path) if (path / name).is_file()}
        return cls._whole(path, parts, _placed(path, files, cache))

    @classmethod
    def _of_gguf(cls, file: Path, cache: HashCache) -> "HeldWeights":
        header = read_header(file)
        decisive = {
            key: value
            for key, value in sorted(header.metadata.items())
            if key.startswith(_DECISIVE) or not key.startswith(_DESCRIBING)
        }
        metadata = json.dumps(decisive, separators=(",", ":")).encode()
        return cls._whole(file, {METADATA: metadata}, _placed(file, header.parts, cache))

    @classmethod
    def _whole(cls, path: Path, parts: Mapping[str, bytes], tensors: Mapping[str, PlacedTensor]) -> "HeldWeights":
        try:
            manifest = Manifest(
                tuple(_row(name, data) for name, data in sorted(parts.items())),
                tuple(placed.tensor.row() for _, placed in sorted(tensors.items())),
            )
            encoded = manifest.encode()
        except LocalProtocolError as error:
            raise UsageError(f"{path} holds more than a model may: {error}.") from None
        return cls(manifest=manifest, encoded=encoded, parts=parts, tensors=tensors)

    @classmethod
    def _of_part(cls, folder: Path, cache: HashCache) -> "HeldWeights":
        manifest, encoded = read_manifest(folder / MANIFEST)
        suffix = GGUF_SUFFIX if is_of_gguf(manifest) else ".safetensors"
        files = sorted(folder.glob(f"*{suffix}"))
        parts = {}
        for part in manifest.parts:
            if not is_part_name(part.name):
                raise UsageError(f"{folder / MANIFEST} names {part.name!r}, which is no file of a model.")
            file = folder / part.name
            data = _read_part(file) if file.is_file() else b""
            if _row(part.name, data) != part:
                raise UsageError(f"{file} is not what {MANIFEST} says; remove {folder}, and it is fetched again.")
            parts[part.name] = data
        tensors = _placed(folder, files, cache)
        rows = {row.name: row for row in manifest.tensors}
        for name, placed in tensors.items():
            if rows.get(name) != placed.tensor.row():
                raise UsageError(
                    f"{name} in {placed.file} is not what {MANIFEST} says; remove {placed.file}, and it is fetched "
                    "again."
                )
        return cls(manifest=manifest, encoded=encoded, parts=parts, tensors=tensors)


def _read_part(file: Path) -> bytes:
    try:
        return read_bounded(file, most_bytes=MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error}); fetch the model again.") from None


def read_manifest(file: Path) -> tuple[Manifest, bytes]:
    """Return the manifest in a file, and its encoding. Raises `UsageError`."""
    try:
        with file.open("rb") as opened:
            encoded = opened.read(MAX_MANIFEST_BYTES + 1)
        return Manifest.decode(encoded), encoded
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None
    except MalformedMessage as error:
        raise UsageError(f"{file} is no manifest of weights: {error}.") from None


def is_of_gguf(manifest: Manifest) -> bool:
    return [part.name for part in manifest.parts] == [METADATA]


def part_names(folder: Path) -> list[str]:
    """Return the names of a model's small files that affect its texts, whether they exist or not."""
    sources = [] if (folder / TOKENIZER).is_file() else other_names(folder)
    return [MODEL_CONFIG, GENERATION_CONFIG, *names_in(folder), *sources]


def is_part_name(name: str) -> bool:
    """Return whether a name is one of `part_names` or of a GGUF file, and thus within the folder."""
    known = (METADATA, MODEL_CONFIG, GENERATION_CONFIG, *NAMES, *OTHER_NAMES)
    return name in known or _PART.fullmatch(name) is not None


def _row(name: str, data: bytes) -> ManifestPart:
    return ManifestPart(name, len(data), hashlib.sha256(data).digest())


def _placed(place: Path, files: Sequence[Path], cache: HashCache) -> dict[str, PlacedTensor]:
    found: dict[str, PlacedTensor] = {}
    for file in files:
        for tensor in cache.tensors(file):
            if tensor.name in found:
                raise UsageError(f"Several files in {place} hold the same tensor; keep one copy of the weights.")
            found[tensor.name] = PlacedTensor(file, tensor)
    return found
