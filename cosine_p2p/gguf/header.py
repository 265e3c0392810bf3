"""The header of a GGUF file, or of several files of one model: its metadata, and the location of each tensor.

The format is llama.cpp's: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the package
`gguf` is not used: it takes seconds for a real vocabulary, and does not terminate on a damaged count.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from cosine_protocol.errors import UsageError

SUFFIX: Final = ".gguf"  # The file name extension of llama.cpp and the Hugging Face hub.
MAGIC: Final = b"GGUF"  # The first bytes of every file, from the format.
VERSIONS: Final = (2, 3)  # The versions with 64-bit counts; version 1 is obsolete since 2023.
ALIGNMENT_BYTES: Final = 32  # From the format: the default alignment of tensors.
MAX_DIMENSIONS: Final = 4  # From the format.
MAX_ITEMS: Final = 4_000_000  # Lists, keys and tensors of a file: three times the largest vocabularies.
MAX_HEADER_BYTES: Final = 128 << 20  # Ten times the longest with four million items; sparse files have any length.
PART_NUMBER, PART_COUNT, PART_TENSORS = "split.no", "split.count", "split.tensors.count"
"""The keys of a model in several files: a file's number from zero, and totals."""
PART_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

BLOCKS: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""ggml's types of tensors: name, weights per block, bytes per block. The same as in the package `gguf`."""
STRING: Final = 8  # From the format: the type number of texts.
ARRAY: Final = 9  # From the format: the type number of lists of values of one type.
SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
"""The other types of values, as `struct` names them; all are little-endian."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as stored. The first dimension of `shape` is contiguous in the file, as in the format."""

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    start: int  # The offset of its bytes in the file.
    size_bytes: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GgufHeader:
    """The metadata by key, the tensors by name in order, and the files in order."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    parts: tuple[Path, ...]


_HELD: Final = WeakValueDictionary[tuple[int, ...], GgufHeader]()  # By the file itself, its size and time.


def is_gguf(path: Path) -> bool:
    """Return whether a path is of the format, by its name or first bytes."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as handle:
            return handle.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_header(file: Path) -> GgufHeader:
    """Return the header of all parts of a model, cached while referenced. Raises `UsageError`."""
    try:
        status = file.stat()
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    header = _HELD.get(key)
    if header is None:
        header = _HELD[key] = _whole(file)
    return header


def _whole(file: Path) -> GgufHeader:
    first = read_part(file)
    count = first.metadata.get(PART_COUNT, 1)
    if not isinstance(count, int):
        raise UsageError(f"{file} has a {PART_COUNT} that is no number; fetch it again.")
    if count <= 1:
        return first
    names = part_names(file.name)
    # The link in a model's folder has another name.
    while len(names) != count and file.is_symlink():
        file = file.parent / file.readlink()
        names = part_names(file.name)
    number = first.metadata.get(PART_NUMBER)
    if number != 0:
        raise UsageError(f"{file} is only a part of a model; name the first of its {count} parts.")
    if len(names) != count:
        raise UsageError(f"{file} is the first of {count} parts; its name must end in {_part(1, count)}.")
    parts = tuple(file.with_name(name) for name in names)
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None:
        raise UsageError(f"{missing} is missing, one of the {count} parts of {file.name}; fetch it too.")
    tensors = list(first.tensors)
    for number, part in enumerate(parts[1:], 1):
        other = read_part(part)
        if (other.metadata.get(PART_NUMBER), other.metadata.get(PART_COUNT)) != (number, count):
            raise UsageError(f"{part} is not part {number + 1} of {file.name}; fetch it again.")
        tensors += other.tensors
    if len({tensor.name for tensor in tensors}) != first.metadata.get(PART_TENSORS, len(tensors)):
        raise UsageError(f"The parts of {file.name} are not of one model; fetch them again.")
    return GgufHeader(first.metadata, tuple(sorted(tensors, key=lambda tensor: tensor.name)), parts)


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a model, given the first; of any other name just that."""
    found = PART_NAME.fullmatch(name)
    if found is None or int(found["number"]) != 1:
        return (name,)
    count = int(found["count"])
    return tuple(found["stem"] + _part(number, count) for number in range(1, count + 1)) or (name,)


def _part(number: int, count: int) -> str:
    return f"-{number:05}-of-{count:05}{SUFFIX}"


def read_part(file: Path) -> GgufHeader:
    """Return the header of one file, also of a part. Raises `UsageError`."""
    try:
        with file.open("rb") as handle:
            if handle.read(len(MAGIC)) != MAGIC:
                raise UsageError(f"{file} is no GGUF file: it does not begin with the letters GGUF.")
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_header(file, data)
    except ValueError as error:
        raise UsageError(f"{file} is a damaged GGUF file ({error}); fetch it again.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None


class FileBytes(Protocol):
    """The bytes of a local or remote file; a header is read sequentially."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> bytes: ...


def parse_header(file: Path, data: FileBytes) -> GgufHeader:
    """Return the header of a file of this name with these bytes. Raises `ValueError`."""
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin with the letters GGUF")
    try:
        return _Reading(file, data).header()
    except (struct.error, OverflowError) as error:
        raise ValueError(str(error)) from None


def stored_bytes(name: str, kind: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes. Raises `ValueError` for an invalid one."""
    found = next(((weights, size) for known, weights, size in BLOCKS.values() if known == kind), None)
    if found is None:
        raise ValueError(f"tensor {name} is of the unknown type {kind}")
    if not 0 < len(shape) <= MAX_DIMENSIONS or 0 in shape:
        raise ValueError(f"tensor {name} has no weights")
    block_weights, block_bytes = found
    if shape[0] % block_weights:
        raise ValueError(f"tensor {name} has rows that are no whole blocks of {kind}")
    return math.prod(shape) // block_weights * block_bytes


def part_header(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[int]]:
    """Return the header of a file of these tensors, and the offset of each. Raises `ValueError`."""
    numbers = {name: number for number, (name, _, _) in BLOCKS.items()}
    offsets, size_bytes, infos = [], 0, b""
    for name, kind, shape in tensors:
        encoded, tensor_bytes = name.encode(), stored_bytes(name, kind, shape)
        infos += struct.pack(f"<Q{len(encoded)}sI{len(shape)}Q", len(encoded), encoded, len(shape), *shape)
        infos += struct.pack("<IQ", numbers[kind], size_bytes)
        offsets.append(size_bytes)
        size_bytes += -(-tensor_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    header = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), 0) + infos
    header += bytes(-len(header) % ALIGNMENT_BYTES)
    return header, [len(header) + offset for offset in offsets]


class _Reading:
    """One pass over a header after the magic. Methods raise what `parse_header` catches."""

    def __init__(self, file: Path, data: FileBytes) -> None:
        self._file = file
        self._data = data
        self._at = len(MAGIC)
        self._left_items = MAX_ITEMS

    def header(self) -> GgufHeader:
        (version,) = self._unpack("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}, not {' or '.join(map(str, VERSIONS))}")
        tensor_count, metadata_count = self._unpack("QQ")
        metadata: dict[str, Any] = {}
        self._count(tensor_count + metadata_count)
        for _ in range(metadata_count):
            key = self._string()
            metadata[key] = self._value(*self._unpack("I"))
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment_bytes = metadata.get("general.alignment", ALIGNMENT_BYTES)
        if not isinstance(alignment_bytes, int) or alignment_bytes < 1:
            raise ValueError("its alignment is no number of bytes")
        data_start = -(-self._at // alignment_bytes) * alignment_bytes
        tensors = [self._tensor(data_start, *info) for info in infos]
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise ValueError("two tensors have one name")
        return GgufHeader(metadata, tuple(sorted(tensors, key=lambda tensor: tensor.name)), (self._file,))

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        end = self._at + struct.calcsize(f"<{layout}")
        values = struct.unpack(f"<{layout}", self._data[self._at : end])
        self._at = end
        return values

    def _count(self, items: int) -> None:
        self._left_items -= items
        if self._left_items < 0:
            raise ValueError(f"it has more than {MAX_ITEMS:,} items")

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        if length > len(self._data) - self._at:
            raise ValueError("a text ends after the file")
        if self._at + length > MAX_HEADER_BYTES:
            raise ValueError(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        text = self._data[self._at : self._at + length].decode()
        self._at += length
        return text

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._unpack(SCALARS[kind])[0]
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"a value is of the unknown type {kind}")
        item_kind, count = self._unpack("IQ")
        # Every item takes at least a byte.
        if count > len(self._data) - self._at:
            raise ValueError("a list ends after the file")
        self._count(count)
        if item_kind == STRING:
            return [self._string() for _ in range(count)]
        if item_kind not in SCALARS:
            raise ValueError(f"a list has items of the unknown type {item_kind}")
        return list(self._unpack(f"{count}{SCALARS[item_kind]}"))

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._unpack("I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = self._unpack(f"{dimensions}Q")
        if not shape or 0 in shape:
            raise ValueError(f"tensor {name} has no weights")
        kind, offset = self._unpack("IQ")
        return name, shape, kind, offset

    def _tensor(self, data_start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        if kind not in BLOCKS:
            raise ValueError(f"tensor {name} is of the unknown type {kind}")
        kind_name = BLOCKS[kind][0]
        start, size_bytes = data_start + offset, stored_bytes(name, kind_name, shape)
        if start + size_bytes > len(self._data):
            raise ValueError(f"tensor {name} ends after the file: it was not fetched whole")
        return GgufTensor(name, kind_name, shape, self._file, start, size_bytes)
