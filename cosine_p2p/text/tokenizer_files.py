"""The files of a tokenizer: their digest, their cache, and their download from a peer."""

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final

from platformdirs import user_cache_dir

from cosine_p2p.text.tokenizer_sources import TOKENIZER, TokenizerSources, other_names
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import Channel, read_budget
from cosine_protocol.discover import DISCOVER, AskFile, FilePiece
from cosine_protocol.errors import PeerError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.fields import MAX_CHUNK_BYTES, MAX_FILE_BYTES
from cosine_protocol.stream import Error

NAMES: Final = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "merges.txt", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "vocab.json", "vocab.txt",
)  # fmt: skip
"""The files of transformers' tokenizers."""
TEMPLATE_FOLDER: Final = "additional_chat_templates"
"""The folder of further chat templates. Requested as a file it is their list, one name per line."""
ADDITIONAL_TEMPLATES: Final = f"{TEMPLATE_FOLDER}/"
MAX_TEMPLATES: Final = 16  # Each is requested separately.
_TEMPLATE: Final = re.compile(rf"{ADDITIONAL_TEMPLATES}\w[\w.-]{{0,199}}\.jinja", re.ASCII)
ANSWER_TIMEOUT_S: Final = 10.0  # For a piece of at most `MAX_CHUNK_BYTES`.
MAX_ASKED_PIECES: Final = 15  # 3.75 MiB of the largest pieces, which a channel can queue.
FETCH_S: Final = 20.0  # The time for all files, in addition to that for their bytes.
READ_FACTOR: Final = 16.0  # A file is copied, while a message is decoded.
LEAST_BYTES_PER_S: Final = 50_000  # A slower peer is replaced by another.


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The contents of `NAMES` and templates in `TEMPLATE_FOLDER`, by name. Empty files are ignored."""

    files: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        kept = {name: data for name, data in sorted(self.files.items()) if data}
        object.__setattr__(self, "files", MappingProxyType(kept))

    @property
    def digest(self) -> bytes:
        """The SHA-256 of a mark and all files by name; names and contents are preceded by their length."""
        total = hashlib.sha256(b"cosine/tokenizer/1")
        for name, content in self.files.items():
            for counted in (name.encode(), content):
                total.update(len(counted).to_bytes(8, "big"))
                total.update(counted)
        return total.digest()

    def answer(self, name: str) -> bytes:
        """Return the answer to a request for a name: a file, the list of templates, or nothing."""
        if name == TEMPLATE_FOLDER:
            return "\n".join(each for each in self.files if each.startswith(ADDITIONAL_TEMPLATES)).encode()
        return self.files.get(name, b"")

    @classmethod
    def stored(cls, folder: Path) -> "TokenizerFiles":
        """Return the tokenizer files in a folder. Raises `UsageError` as `read`."""
        return cls(_read(folder, names_in(folder)))

    @classmethod
    def read(cls, folder: Path) -> "TokenizerFiles | None":
        """Return the tokenizer files of a model's folder; None if the folder has no vocabulary.

        Without a tokenizer.json it is the one that a node has converted. Raises `UsageError` if there is none, the
        files are too large, or one is a link out of the folder, since they may be served to other peers. Links to
        blobs of Hugging Face's cache are allowed.
        """
        sources = unconverted(folder)
        if sources is None:
            found = cls.stored(folder)
            return found if TOKENIZER in found.files else None
        made = sources.converted()
        if made is None:
            raise UsageError(
                f"{folder} has a {sources.vocabulary} and no tokenizer.json, which a client reads: name the target "
                "as its verifiers announce it, or let transformers write the file: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
            )
        return cls.stored(made)

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, atomically. Raises `OSError`."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        try:
            draft.mkdir()
            for name, data in self.files.items():
                (draft / name).parent.mkdir(exist_ok=True)
                (draft / name).write_bytes(data)
            draft.rename(folder)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.is_dir():
                raise


def _read(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    root, files = folder.resolve(), {}
    # https://huggingface.co/docs/huggingface_hub/guides/manage-cache: snapshots/REVISION next to blobs.
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else root
    for name in names:
        file = (root / name).resolve()
        if not file.is_file():
            continue
        if not (file.is_relative_to(root) or file.is_relative_to(blobs)):
            raise UsageError(
                f"{name} in {folder} is a link to {file}; tokenizer files are served to strangers, so put "
                "a copy there if it is one."
            )
        with file.open("rb") as opened:
            files[name] = opened.read(MAX_FILE_BYTES + 1)
    if sum(map(len, files.values())) > MAX_FILE_BYTES:
        raise UsageError(f"The tokenizer in {folder} is larger than {MAX_FILE_BYTES >> 20} MiB.")
    return files


def unconverted(folder: Path) -> TokenizerSources | None:
    """Return the sources of a folder's tokenizer that must be converted; None for none. Raises `UsageError`."""
    if (folder / TOKENIZER).is_file():
        return None
    return TokenizerSources.of(_read(folder, [*names_in(folder), *other_names(folder)]), folder=folder)


def names_in(folder: Path) -> list[str]:
    """Return the names of files that may belong to a folder's tokenizer, whether they exist or not."""
    found = sorted(f"{ADDITIONAL_TEMPLATES}{file.name}" for file in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
    return [*NAMES, *[name for name in found if _TEMPLATE.fullmatch(name)][:MAX_TEMPLATES]]


class TokenizerCache:
    """A cache of tokenizer files by digest, each in a folder that tokenizer libraries can load."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(user_cache_dir("cosine-p2p")) / "tokenizers"

    def folder_of(self, digest: bytes) -> Path:
        return self._folder / digest.hex()

    def get(self, digest: bytes) -> TokenizerFiles | None:
        """Return the files of a digest; None if they are missing or damaged."""
        folder = self.folder_of(digest)
        if not folder.is_dir():
            return None
        found = TokenizerFiles.stored(folder)
        return found if found.digest == digest else None

    def put(self, files: TokenizerFiles) -> Path:
        """Store the files and return their folder. Raises `OSError`."""
        folder = self.folder_of(files.digest)
        if self.get(files.digest) is None:
            if folder.is_dir():
                os.replace(folder, folder.with_name(f".damaged.{secrets.token_hex(8)}"))
            files.write(folder)
        return folder


async def fetch_tokenizer_files(transport: Transport, peer_id: str, digest: bytes) -> TokenizerFiles:
    """Download tokenizer files from a peer. Raises `PeerLost`, `PeerError`, and `RemoteProtocolError`."""
    stream = await transport.dial(peer_id, DISCOVER)
    async with Channel(stream, DISCOVER, budget=read_budget(factor=READ_FACTOR)) as channel:
        files = await _Fetch(channel, digest).all_files()
    if files.digest != digest:
        raise RemoteProtocolError(f"{peer_id} sent tokenizer files that do not match their digest")
    return files


class _Fetch:
    """One download within a budget of bytes; each piece is requested as soon as it is known."""

    def __init__(self, channel: Channel, digest: bytes) -> None:
        self._channel = channel
        self._digest = digest
        self._numbers = count(1)
        self._began_s = asyncio.get_running_loop().time()
        self._received_bytes = 0
        self._bytes_left = MAX_FILE_BYTES

    async def all_files(self) -> TokenizerFiles:
        files = await self._read([*NAMES, TEMPLATE_FOLDER])
        templates = files.pop(TEMPLATE_FOLDER).decode("ascii", "replace").splitlines()
        if len(templates) > MAX_TEMPLATES or not all(map(_TEMPLATE.fullmatch, templates)):
            raise RemoteProtocolError(f"{self._channel.peer_id} sent names of chat templates that are none")
        return TokenizerFiles(files | await self._read(templates))

    async def _read(self, names: Sequence[str]) -> dict[str, bytes]:
        waiting = deque((name, 0) for name in names)
        asked: deque[tuple[int, str, int]] = deque()
        files: dict[str, bytearray] = {name: bytearray() for name in names}
        sizes_bytes: dict[str, int] = {}
        while waiting or asked:
            while waiting and len(asked) < MAX_ASKED_PIECES:
                name, offset = waiting.popleft()
                asked.append((next(self._numbers), name, offset))
                self._channel.post(AskFile(asked[-1][0], self._digest, name, offset, compresses=True))
            number, name, offset = asked.popleft()
            piece = await self._receive(number)
            if offset == 0:
                sizes_bytes[name] = piece.total_bytes
                self._bytes_left -= piece.total_bytes
                if self._bytes_left < 0:
                    raise RemoteProtocolError(f"{self._channel.peer_id} has more tokenizer files than allowed")
                more = range(MAX_CHUNK_BYTES, piece.total_bytes, MAX_CHUNK_BYTES)
                waiting.extend((name, later) for later in more)
            # Only the last piece may be short, else a peer could prolong the download forever.
            due_bytes = min(sizes_bytes[name] - offset, MAX_CHUNK_BYTES)
            data = expanded(piece, most_bytes=due_bytes)
            if piece.total_bytes != sizes_bytes[name] or data is None or len(data) != due_bytes:
                raise RemoteProtocolError(f"{self._channel.peer_id} sent pieces of {name} that do not fit")
            files[name] += data
            self._received_bytes += len(piece.data)
        return {name: bytes(data) for name, data in files.items()}

    async def _receive(self, number: int) -> FilePiece:
        try:
            latest_s = self._began_s + FETCH_S + self._received_bytes / LEAST_BYTES_PER_S
            async with asyncio.timeout(min(ANSWER_TIMEOUT_S, latest_s - asyncio.get_running_loop().time())):
                answer = await self._channel.receive()
        except TimeoutError:
            raise PeerLost(self._channel.peer_id, f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        if isinstance(answer, Error):
            raise PeerError(answer.code, answer.message, answer.retry_after_s)
        if not isinstance(answer, FilePiece) or answer.number != number:
            raise RemoteProtocolError(f"{self._channel.peer_id} did not answer what was asked")
        return answer


def expanded(piece: FilePiece, *, most_bytes: int) -> bytes | None:
    """Return the bytes of a piece; None if they are more than `most_bytes`, or damaged."""
    if not piece.is_compressed:
        return piece.data
    expansion = zlib.decompressobj()
    try:
        data = expansion.decompress(piece.data, most_bytes + 1)
    except zlib.error:
        return None
    return data if expansion.eof and not expansion.unused_data and len(data) <= most_bytes else None


def parse_digest(text: str) -> bytes:
    """Return 32 bytes from 64 hex digits. Raises `ValueError`."""
    if not re.fullmatch(r"[0-9a-f]{64}", text.lower()):
        raise ValueError("a digest is 64 hex digits")
    return bytes.fromhex(text)
