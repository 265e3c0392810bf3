"""Hashes of the pieces of a model's tensors, by file, cached on disk."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from platformdirs import user_cache_dir

from cosine_p2p.gguf.header import is_gguf, read_part
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import CONTENT_DIGEST_BYTES
from cosine_protocol.weights import PIECE_BYTES, ManifestTensor, pieces_root

LOG = logging.getLogger(__name__)
CACHE_VERSION: Final = 2  # Entries of other versions are ignored.
MAX_HEADER_BYTES: Final = 16 << 20  # Enough for 100,000 tensors; safetensors' 100 MB may need 2 GB of objects.


@dataclass(frozen=True, slots=True, order=True)
class HashedTensor:
    """A tensor in a file, from the byte `start`, with the SHA-256 of each of its pieces."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int
    digests: tuple[bytes, ...] = field(repr=False)

    def row(self) -> ManifestTensor:
        return ManifestTensor(self.name, self.dtype, self.shape, self.size_bytes, pieces_root(self.digests))


def read_tensors(file: Path) -> list[HashedTensor]:
    """Hash every tensor of a safetensors or GGUF file. Raises `UsageError` if it is damaged."""
    header = read_part(file) if is_gguf(file) else None
    try:
        with file.open("rb") as handle:
            if header is None:
                places = list(_placed(handle, file.stat().st_size))
            else:
                places = [(one.name, one.kind, one.shape, one.start, one.size_bytes) for one in header.tensors]
            return [
                HashedTensor(*place, digests=tuple(_hash_pieces(handle, start=place[3], size_bytes=place[4])))
                for place in places
            ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{file} is not a readable safetensors file ({error}); fetch it again.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None


def _placed(handle: BinaryIO, size_bytes: int) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """Read a safetensors file: 8 bytes little-endian header length, a JSON header, then the tensors' bytes."""
    header_bytes = int.from_bytes(handle.read(8), "little")
    data_start = 8 + header_bytes
    if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size_bytes - 8):
        raise ValueError("the header length is wrong")
    header: dict[str, Any] = json.loads(handle.read(header_bytes))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = map(int, entry["data_offsets"])
        if not 0 <= begin <= end <= size_bytes - data_start:
            raise ValueError(f"tensor {name} lies outside the file")
        yield name, str(entry["dtype"]), tuple(map(int, entry["shape"])), data_start + begin, end - begin


def _hash_pieces(handle: BinaryIO, *, start: int, size_bytes: int) -> Iterator[bytes]:
    handle.seek(start)
    while size_bytes:
        piece = handle.read(min(size_bytes, PIECE_BYTES))
        if not piece:
            raise ValueError("it ends too early")
        yield hashlib.sha256(piece).digest()
        size_bytes -= len(piece)


class HashCache:
    """Tensor hashes on disk, one small JSON file per weight file, keyed by path, size and mtime."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(user_cache_dir("cosine-p2p")) / "tensor-hashes"

    def tensors(self, file: Path) -> list[HashedTensor]:
        status = file.stat()
        key = f"{CACHE_VERSION}\n{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
        entry = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        try:
            return [_of_row(row) for row in json.loads(entry.read_text(encoding="utf-8"))]
        except (OSError, TypeError, ValueError, RecursionError):
            tensors = read_tensors(file)
        rows = [[t.name, t.dtype, list(t.shape), t.start, t.size_bytes, b"".join(t.digests).hex()] for t in tensors]
        try:
            replace_text(entry, json.dumps(rows, indent=0))
        except OSError as error:
            LOG.warning("%s: the hashes of %s are not cached", error, file)
        return tensors


def _of_row(row: list[Any]) -> HashedTensor:
    name, dtype, shape, start, size_bytes, joined = row
    digests = bytes.fromhex(joined)
    each = range(0, len(digests), CONTENT_DIGEST_BYTES)
    cut = tuple(digests[at : at + CONTENT_DIGEST_BYTES] for at in each)
    return HashedTensor(name, dtype, tuple(shape), start, size_bytes, cut)
