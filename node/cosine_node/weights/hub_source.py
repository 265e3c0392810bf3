"""Weights of a repository of the Hugging Face hub, by ranges of its safetensors files."""

import asyncio
import json
import re
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from cosine_node.weights.partial_folder import INDEX
from cosine_p2p.text.tensor_hashes import MAX_HEADER_BYTES
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.limits import MAX_TENSORS
from cosine_protocol.manifest import PIECE_BYTES, Manifest

WHOLE: Final = "model.safetensors"
"""The name that a model's one file has."""
TIMEOUT_S: Final = 30.0
"""Of one answer's next bytes."""
RUN_PIECES: Final = 1 << 30
"""A whole tensor, however large: where nobody tells the digests of its pieces, only the whole can be proved."""
RANGE_PIECES: Final = 32
"""One question for 8 MiB: each is a connection of its own, to another machine than the hub's name says."""
READERS: Final = 4
MAX_INDEX_BYTES: Final = 512 * MAX_TENSORS
"""Two names of each, its own and its file's; 90,000 tensors took 10 MB."""
_REPOSITORY: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FILE: Final = re.compile(r"[\w.-]+\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies on the hub."""

    url: str
    start: int


class HubSource:
    """A repository whose files may be those of a manifest; what comes is checked against that like a peer's.

    Methods raise `PeerLost` where the hub does not answer, and `RemoteProtocolError` for other files.
    """

    most_pieces: int = RANGE_PIECES
    run_pieces: int = RUN_PIECES
    readers: int = READERS

    def __init__(self, repository: str, *, endpoint: str, token: str | None = None) -> None:
        self.name = f"{endpoint}/{repository}"
        self._base = f"{endpoint}/{quote(repository)}/resolve/main/"
        self._token = token
        self._places: dict[int, _Place] = {}

    @classmethod
    def of(cls, name: str) -> "HubSource | None":
        """The repository of a model that is called as those of the hub are, unless the hub is not to be asked."""
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE or not _REPOSITORY.fullmatch(name):
            return None
        return cls(name, endpoint=constants.ENDPOINT, token=get_token())

    async def look(self, manifest: Manifest) -> None:
        """Read where the tensors of a manifest lie, as far as the files have them."""
        self._places = await asyncio.to_thread(self._look, manifest)

    def holds(self, row: int) -> bool:
        return row in self._places

    def note_lacks(self, row: int) -> None:
        """The tensor is another one there."""
        self._places.pop(row, None)

    async def digests(self, manifest: Manifest, row: int) -> None:
        """The hub has none."""

    async def read(self, manifest: Manifest, row: int, first_piece: int, count: int) -> bytes:
        """The bytes of pieces that follow each other, not checked yet."""
        tensor, place = manifest.tensors[row], self._places[row]
        size_bytes = sum(tensor.piece_bytes(piece) for piece in range(first_piece, first_piece + count))
        start = place.start + first_piece * PIECE_BYTES
        return await asyncio.to_thread(self._range, place.url, start, size_bytes)

    def _look(self, manifest: Manifest) -> dict[int, _Place]:
        rows = {tensor.name: row for row, tensor in enumerate(manifest.tensors)}
        found: dict[int, _Place] = {}
        try:
            for file in self._files():
                url = self._base + quote(file)
                header_bytes = int.from_bytes(self._range(url, 0, 8), "little")
                if not 2 <= header_bytes <= MAX_HEADER_BYTES:
                    raise ValueError("the header length is wrong")
                header: dict[str, Any] = json.loads(self._range(url, 8, header_bytes))
                for name, entry in header.items():
                    row = rows.get(name)
                    if row is None:
                        continue
                    tensor = manifest.tensors[row]
                    begin, end = map(int, entry["data_offsets"])
                    said = str(entry["dtype"]), tuple(map(int, entry["shape"])), end - begin
                    if begin >= 0 and said == (tensor.dtype, tensor.shape, tensor.size_bytes):
                        found[row] = _Place(url, 8 + header_bytes + begin)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RemoteProtocolError(f"{self.name} has other files than safetensors ({error})") from None
        return found

    def _files(self) -> list[str]:
        """The names of the files with weights. Raises `ValueError` and the like where the list is damaged."""
        listed = self._get(self._base + INDEX, MAX_INDEX_BYTES)
        if listed is None:
            return [WHOLE]
        names = {str(name) for name in json.loads(listed)["weight_map"].values()}
        if wrong := [name for name in names if not _FILE.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a file with weights")
        return sorted(names)

    def _range(self, url: str, start: int, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        data = self._get(url, size_bytes, Range=f"bytes={start}-{start + size_bytes - 1}")
        if data is None or len(data) != size_bytes:
            raise RemoteProtocolError(f"{self.name} sent a range of another length")
        return data

    def _get(self, url: str, most_bytes: int, **headers: str) -> bytes | None:
        """The bytes that an address has; None where there is nothing. Blocks."""
        request = Request(url, headers=headers)
        if self._token:
            # Not for the machine that the hub sends us to.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                if headers and answer.status != 206:
                    raise RemoteProtocolError(f"{self.name} sends no ranges")
                data: bytes = answer.read(most_bytes + 1)
        except URLError as error:
            if getattr(error, "code", None) == 404:
                return None
            raise PeerLost(self.name, str(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise PeerLost(self.name, str(error) or type(error).__name__) from None
        if len(data) > most_bytes:
            raise RemoteProtocolError(f"{self.name} sent more than was asked for")
        return data
