"""Weights of a repository of the Hugging Face hub, by ranges of its safetensors files or of a GGUF file."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from cosine_engine.models.partial_folder import INDEX
from cosine_engine.zoo.family import HUB_FILE
from cosine_p2p.gguf.header import MAGIC, parse_header, part_names
from cosine_p2p.text.tensor_hashes import MAX_HEADER_BYTES
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.weights import MAX_TENSORS, PIECE_BYTES, Manifest

WHOLE: Final = "model.safetensors"
"""The name of an undivided model's file."""
TIMEOUT_S: Final = 30.0
"""Timeout for the next bytes of an answer."""
RUN_PIECES: Final = 1 << 30
"""No limit: the hub has no digests of pieces, so that only a whole tensor can be checked."""
RANGE_PIECES: Final = 32
"""8 MiB per request, since each opens a connection to the hub's storage."""
READERS: Final = 4
MAX_INDEX_BYTES: Final = 512 * MAX_TENSORS
"""Two names for each tensor; an index of 90,000 tensors had 10 MB."""
_REPOSITORY: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FILE: Final = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_GGUF: Final = re.compile(rf"{HUB_FILE}({_REPOSITORY.pattern})/((?:\w[\w.-]*/)*\w[\w.-]*\.gguf)", re.ASCII)
_RANGE: Final = re.compile(r"bytes [0-9]+-[0-9]+/([0-9]{1,18})", re.ASCII)
"""The header Content-Range (RFC 9110, 14.4)."""


@dataclass(frozen=True, slots=True)
class _FilePlace:
    url: str
    start: int


_Found = tuple[str, tuple[str, tuple[int, ...], int], _FilePlace]
"""A tensor's name; its type, shape and size in bytes; its location."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The content of a URL or a range of it, and the size of the whole."""

    data: bytes
    whole_bytes: int


class _FrontBytes:
    """Implements `FileBytes` for a file on the hub, which is read in steps."""

    def __init__(self, hub: "HubSource", url: str) -> None:
        self._hub = hub
        self._url = url
        self._start = 0
        begin = hub.read_range(url, 0, len(MAGIC))
        self._data, self._size_bytes = begin.data, begin.whole_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, places: slice, /) -> bytes:
        first, end, _ = places.indices(self._size_bytes)
        if first < self._start or end > self._start + len(self._data):
            size_bytes = max(end - first, min(RANGE_PIECES * PIECE_BYTES, self._size_bytes - first))
            self._start, self._data = first, self._hub.read_range(self._url, first, size_bytes).data
        return self._data[first - self._start : end - self._start]


class HubSource:
    """A repository, or one GGUF file of it, with tensors of a manifest.

    Methods raise `PeerLost` if the hub does not answer, and `RemoteProtocolError` for wrong files.
    """

    most_pieces: int = RANGE_PIECES
    run_pieces: int = RUN_PIECES
    readers: int = READERS

    def __init__(self, repository: str, *, endpoint: str, token: str | None = None, file: str = "") -> None:
        """`file` is a GGUF file, or the first of its parts."""
        self.name = f"{endpoint}/{repository}" + (f"/{file}" if file else "")
        self._base = f"{endpoint}/{quote(repository)}/resolve/main/"
        self._file = file
        self._token = token
        self._places: dict[int, _FilePlace] = {}

    @classmethod
    def of(cls, name: str) -> "HubSource | None":
        """The source of a model with a name of the hub. None for other names, and offline."""
        from huggingface_hub import constants, get_token

        gguf = _GGUF.fullmatch(name)
        repository, file = (gguf[1], gguf[2]) if gguf else (name, "")
        if constants.HF_HUB_OFFLINE or not _REPOSITORY.fullmatch(repository):
            return None
        return cls(repository, endpoint=constants.ENDPOINT, token=get_token(), file=file)

    async def look(self, manifest: Manifest) -> None:
        self._places = await asyncio.to_thread(self._look, manifest)

    def holds(self, row: int) -> bool:
        return row in self._places

    def note_lacks(self, row: int) -> None:
        """Note that the hub has another tensor of that name."""
        self._places.pop(row, None)

    async def digests(self, manifest: Manifest, row: int) -> None:
        """The hub has none."""

    async def read(self, manifest: Manifest, row: int, first_piece: int, count: int) -> bytes:
        """The unchecked bytes of consecutive pieces."""
        tensor, place = manifest.tensors[row], self._places[row]
        size_bytes = sum(tensor.piece_bytes(piece) for piece in range(first_piece, first_piece + count))
        start = place.start + first_piece * PIECE_BYTES
        return (await asyncio.to_thread(self.read_range, place.url, start, size_bytes)).data

    def _look(self, manifest: Manifest) -> dict[int, _FilePlace]:
        rows = {tensor.name: row for row, tensor in enumerate(manifest.tensors)}
        found: dict[int, _FilePlace] = {}
        try:
            for name, said, place in self._stored() if self._file else self._saved():
                tensor = manifest.tensors[rows[name]] if name in rows else None
                if tensor is not None and said == (tensor.dtype, tensor.shape, tensor.size_bytes):
                    found[rows[name]] = place
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"{self.name} has other files than those of a model ({error})") from None
        return found

    def _stored(self) -> Iterator[_Found]:
        """The tensors of a GGUF file. Raises `ValueError` if it is damaged."""
        for part in part_names(self._file):
            url = self._base + quote(part)
            for one in parse_header(Path(part), _FrontBytes(self, url)).tensors:
                yield one.name, (one.kind, one.shape, one.size_bytes), _FilePlace(url, one.start)

    def _saved(self) -> Iterator[_Found]:
        """The tensors of safetensors files. Raises `ValueError` and others if they are damaged."""
        for file in self._files():
            url = self._base + quote(file)
            header_bytes = int.from_bytes(self.read_range(url, 0, 8).data, "little")
            if not 2 <= header_bytes <= MAX_HEADER_BYTES:
                raise ValueError("the header length is wrong")
            header: dict[str, Any] = json.loads(self.read_range(url, 8, header_bytes).data)
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = map(int, entry["data_offsets"])
                if begin < 0:
                    raise ValueError(f"tensor {name} lies outside the file")
                said = str(entry["dtype"]), tuple(map(int, entry["shape"])), end - begin
                yield name, said, _FilePlace(url, 8 + header_bytes + begin)

    def _files(self) -> list[str]:
        """The names of the files with weights. Raises `ValueError` and others if the index is damaged."""
        listed = self._get(self._base + INDEX, MAX_INDEX_BYTES)
        if listed is None:
            return [WHOLE]
        names = {str(name) for name in json.loads(listed.data)["weight_map"].values()}
        if wrong := [name for name in names if not _FILE.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is not the name of a file with weights")
        return sorted(names)

    def read_range(self, url: str, start: int, size_bytes: int) -> _Answer:
        """Read `size_bytes` of a file from `start`. Blocks."""
        if not size_bytes:
            return _Answer(b"", 0)
        answer = self._get(url, size_bytes, Range=f"bytes={start}-{start + size_bytes - 1}")
        if answer is None or len(answer.data) != size_bytes:
            raise RemoteProtocolError(f"{self.name} sent a range of another length")
        return answer

    def _get(self, url: str, most_bytes: int, **headers: str) -> _Answer | None:
        """The content of a URL. None for status 404. Blocks."""
        try:
            request = Request(url, headers=headers)
            if self._token:
                # Not for the storage that the hub redirects to.
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                told = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if headers and (answer.status != 206 or told is None):
                    raise RemoteProtocolError(f"{self.name} sends no ranges")
                data: bytes = answer.read(most_bytes + 1)
        except URLError as error:
            if getattr(error, "code", None) == 404:
                return None
            raise PeerLost(self.name, str(error.reason)) from None
        except (OSError, HTTPException, ValueError) as error:
            # ValueError: an invalid URL of the hub or of a proxy.
            raise PeerLost(self.name, str(error) or type(error).__name__) from None
        if len(data) > most_bytes:
            raise RemoteProtocolError(f"{self.name} sent too many bytes")
        return _Answer(data, int(told[1]) if told else len(data))
