"""The folder of a part of a model: manifest, small files, and tensors by layer.

The tensors of a layer share a file, which is a draft until all have arrived. A fetch that was killed resumes: the
bytes of a draft show which pieces it has.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir

from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import part_header, stored_bytes
from cosine_p2p.storage.state_file import replace_bytes, replace_text
from cosine_p2p.text.held_weights import MANIFEST, is_of_gguf, is_part_name
from cosine_protocol.errors import UsageError
from cosine_protocol.weights import PIECE_BYTES, Manifest, manifest_digest

INDEX: Final = "model.safetensors.index.json"
DRAFT: Final = ".draft"
ALIGNMENT_BYTES: Final = 8
"""Alignment of the first tensor in a safetensors file."""
SPARE_BYTES: Final = 256 << 20
"""Disk space that a fetch leaves free for the state of the node and for other programs."""
_LAYER: Final = re.compile(r".*?\.[0-9]+\.")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A safetensors or GGUF file with some rows of a manifest. `starts` are their offsets."""

    path: Path
    header: bytes
    starts: Mapping[int, int]
    size_bytes: int

    @property
    def draft(self) -> Path:
        return self.path.with_name(self.path.name + DRAFT)


class PartialFolder:
    """The folder of a manifest in the cache. Only checked data is written to it."""

    def __init__(self, manifest: Manifest, encoded: bytes, *, cache_folder: Path | None = None) -> None:
        """Raises `UsageError` for a model that cannot be held in parts."""
        if wrong := [part.name for part in manifest.parts if not is_part_name(part.name)]:
            raise UsageError(f"The manifest names {wrong[0]!r}, which is not a file of a model.")
        self.manifest = manifest
        self.encoded = encoded
        self.path = weights_folder(manifest_digest(encoded), cache_folder=cache_folder)
        self.is_gguf = is_of_gguf(manifest)
        try:
            self._files = _tensor_files(self.path, manifest, is_gguf=self.is_gguf)
        except ValueError as error:
            raise UsageError(f"The manifest is of no GGUF file: {error}.") from None
        self._file_of = {row: file for file in self._files for row in file.starts}

    def write_parts(self, parts: Mapping[str, bytes]) -> None:
        """Write the small files, by their names in the manifest, and then the manifest. Raises `OSError`."""
        for name, data in parts.items():
            replace_bytes(self.path / name, data)
        if not self.is_gguf:
            # It lists all tensors, so that an error names the file of a missing one.
            rows = self.manifest.tensors
            names = {rows[row].name: file.path.name for file in self._files for row in file.starts}
            replace_text(self.path / INDEX, json.dumps({"metadata": {}, "weight_map": names}, indent=0))
        replace_bytes(self.path / MANIFEST, self.encoded)

    def files_of(self, wanted: Collection[int]) -> list[TensorFile]:
        return [file for file in self._files if not file.starts.keys().isdisjoint(wanted)]

    def is_whole(self, file: TensorFile) -> bool:
        return file.path.is_file()

    def begin(self, file: TensorFile) -> dict[int, list[bytes]]:
        """Create or resume the draft of a file. Returns the digests of its pieces. Blocks; raises `OSError`."""
        if not file.draft.is_file() or file.draft.stat().st_size != file.size_bytes:
            # A sparse file: pieces take disk space as they arrive.
            with file.draft.open("wb") as opened:
                opened.write(file.header)
                opened.truncate(file.size_bytes)
            return {row: [] for row in file.starts}
        return {row: list(self._digests(file, row)) for row in file.starts}

    def _digests(self, file: TensorFile, row: int) -> Iterator[bytes]:
        tensor = self.manifest.tensors[row]
        with file.draft.open("rb") as opened:
            opened.seek(file.starts[row])
            for piece in range(tensor.pieces):
                yield hashlib.sha256(opened.read(tensor.piece_bytes(piece))).digest()

    def write(self, row: int, first_piece: int, data: bytes) -> None:
        """Write consecutive pieces. Blocks. Raises `OSError`."""
        file = self._file_of[row]
        try:
            with file.draft.open("r+b") as opened:
                opened.seek(file.starts[row] + first_piece * PIECE_BYTES)
                opened.write(data)
        except FileNotFoundError:
            # Another node of this machine may have completed the file.
            if not self.is_whole(file):
                raise

    def finish(self, file: TensorFile) -> None:
        """Complete a draft. Blocks. Raises `OSError`."""
        if self.is_whole(file):
            return
        with file.draft.open("r+b") as opened:
            os.fsync(opened.fileno())
        os.replace(file.draft, file.path)

    def check_room(self, size_bytes: int) -> None:
        """Raise `UsageError` if the disk has no room for `size_bytes`."""
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < size_bytes + SPARE_BYTES:
            raise UsageError(
                f"{self.path} has room for {free_bytes / 2**30:.1f} GiB, and {size_bytes / 2**30:.1f} GiB lack; "
                "hold fewer layers, or free some space."
            )


def weights_folder(content_digest: bytes, *, cache_folder: Path | None = None) -> Path:
    return (cache_folder or Path(user_cache_dir("cosine-p2p")) / "weights") / content_digest.hex()


def _tensor_files(folder: Path, manifest: Manifest, *, is_gguf: bool) -> list[TensorFile]:
    """One file for each layer, and for each tensor outside of layers."""
    layers: dict[str, list[int]] = {}
    for row, tensor in enumerate(manifest.tensors):
        found = _LAYER.match(tensor.name)
        layers.setdefault(found[0] if found else tensor.name, []).append(row)
    count = len(layers)
    suffix, make = (GGUF_SUFFIX, _gguf_file) if is_gguf else (".safetensors", _tensor_file)
    return [
        make(folder / f"model-{number:05}-of-{count:05}{suffix}", manifest, rows)
        for number, rows in enumerate(layers.values(), 1)
    ]


def _gguf_file(path: Path, manifest: Manifest, rows: list[int]) -> TensorFile:
    """Raises `ValueError` for tensors that cannot be in a GGUF file."""
    tensors = [manifest.tensors[row] for row in rows]
    header, starts = part_header([(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors])
    for tensor in tensors:
        if stored_bytes(tensor.name, tensor.dtype, tensor.shape) != tensor.size_bytes:
            raise ValueError(f"tensor {tensor.name} is of another length")
    return TensorFile(path, header, dict(zip(rows, starts, strict=True)), starts[-1] + tensors[-1].size_bytes)


def _tensor_file(path: Path, manifest: Manifest, rows: list[int]) -> TensorFile:
    header: dict[str, object] = {}
    at = 0
    offsets = {}
    for row in rows:
        tensor = manifest.tensors[row]
        offsets[row] = at
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.size_bytes],
        }
        at += tensor.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    written = len(text).to_bytes(8, "little") + text
    return TensorFile(
        path, written, {row: len(written) + start for row, start in offsets.items()}, len(written) + at
    )
