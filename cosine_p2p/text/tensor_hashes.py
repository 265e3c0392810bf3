"""Hashes of a model's tensors, kept on disk, and the digest of a GGUF file's model."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from platformdirs import user_cache_dir

from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import read_header, read_part
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.text.tokenizer_files import counted_digest
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

_DESCRIBING: Final = ("general.", "quantize.", "split.")  # begin the keys of metadata that change no text


@dataclass(frozen=True, slots=True, order=True)
class HashedTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


def gguf_digest(file: Path, *, cache_folder: Path | None = None) -> bytes:
    """A SHA-256 over what decides about the text of a GGUF file's model.

    That is: the metadata without what only describes the file, and (name, type, shape, SHA-256 of the raw bytes) of
    all tensors in the order of their names, in whatever parts. Tensor hashes are cached as in `identify_target`.
    Raises `UsageError`.
    """
    header = read_header(file)
    decisive = {
        key: value
        for key, value in sorted(header.metadata.items())
        if key == "general.architecture" or not key.startswith(_DESCRIBING)
    }
    cache = HashCache(cache_folder)
    tensors = sorted(tensor for part in header.parts for tensor in cache.tensors(part))
    parts = [("metadata", json.dumps(decisive, separators=(",", ":")).encode()), ("tensors", listing(tensors))]
    return counted_digest(b"cosine/gguf/1", parts)


def listing(tensors: Sequence[HashedTensor]) -> bytes:
    rows = [[tensor.name, tensor.dtype, list(tensor.shape), tensor.sha256] for tensor in tensors]
    return json.dumps(rows, separators=(",", ":")).encode()


def read_tensors(file: Path) -> list[HashedTensor]:
    """Hash every tensor of a safetensors or GGUF file. Raises `UsageError` if it is damaged."""
    header = read_part(file) if file.suffix == GGUF_SUFFIX else None
    try:
        with file.open("rb") as handle:
            if header is None:
                return list(_hashed(handle, file.stat().st_size))
            return [
                HashedTensor(one.name, one.kind, one.shape, _hash_range(handle, one.start, one.size_bytes))
                for one in header.tensors
            ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{file} is not a readable safetensors file ({error}); fetch it again.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None


def _hashed(handle: BinaryIO, size_bytes: int) -> Iterator[HashedTensor]:
    """safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes."""
    header_bytes = int.from_bytes(handle.read(8), "little")
    data_start = 8 + header_bytes
    # About safetensors' own limit, 100 MB.
    if not 2 <= header_bytes <= min(100 << 20, size_bytes - 8):
        raise ValueError("the header length is wrong")
    header: dict[str, Any] = json.loads(handle.read(header_bytes))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = map(int, entry["data_offsets"])
        if not 0 <= begin <= end <= size_bytes - data_start:
            raise ValueError(f"tensor {name} lies outside the file")
        digest = _hash_range(handle, data_start + begin, end - begin)
        yield HashedTensor(name, str(entry["dtype"]), tuple(map(int, entry["shape"])), digest)


def _hash_range(handle: BinaryIO, start: int, length: int) -> str:
    total = hashlib.sha256()
    handle.seek(start)
    while length:
        # Bounded, so that hashing takes little memory.
        piece = handle.read(min(length, 1 << 20))
        if not piece:
            raise ValueError("it ends too early")
        total.update(piece)
        length -= len(piece)
    return total.hexdigest()


class HashCache:
    """Tensor hashes on disk, one small JSON file per weight file, keyed by path, size and mtime."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(user_cache_dir("cosine-p2p")) / "tensor-hashes"

    def tensors(self, file: Path) -> list[HashedTensor]:
        status = file.stat()
        key = f"{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
        entry = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        try:
            rows = json.loads(entry.read_text(encoding="utf-8"))
            return [HashedTensor(name, dtype, tuple(shape), digest) for name, dtype, shape, digest in rows]
        except (OSError, TypeError, ValueError, RecursionError):
            tensors = read_tensors(file)
        try:
            replace_text(entry, json.dumps([[t.name, t.dtype, list(t.shape), t.sha256] for t in tensors], indent=0))
        except OSError as error:
            LOG.warning("%s: what was computed of %s is not kept there", error, file)
        return tensors
