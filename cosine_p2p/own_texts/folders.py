"""One index of the user's folders and past replies, stored in the state folder between runs.

A thread rebuilds it when files have changed, and tokenises only these. Meanwhile the previous index is used.
"""

import asyncio
import json
import logging
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import accumulate, chain, islice
from pathlib import Path
from shutil import rmtree
from stat import S_ISREG
from typing import TYPE_CHECKING, Final

from cosine_p2p.own_texts.drafts import OwnDrafts
from cosine_p2p.own_texts.index import TextIndex
from cosine_p2p.request.offload import Offload
from cosine_p2p.storage.state_file import replace_bytes, state_folder
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import CosineError, UsageError

if TYPE_CHECKING:
    from cosine_p2p.own_texts.index import TokenArray

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 50_000_000  # Tokenised in 15 s and indexed in 10 s on two cores; 230 MB of memory.
MAX_FILES: Final = 100_000  # Bounds a look at a folder: some seconds.
MAX_KEPT: Final = 4  # Maximum number of indices in the state folder; the oldest are deleted.
MAX_FILE_BYTES: Final = 1 << 20  # Longer files are data or generated.
MAX_REPLIES_BYTES: Final = 16 << 20  # Four million tokens; above that the older half is deleted.
JUNK: Final = frozenset(
    {"__pycache__", "bower_components", "build", "dist", "env", "node_modules", "site-packages", "target", "venv"}
)
"""Folders of generated files and dependencies, which `.gitignore` files usually contain."""
BATCH_FILES: Final = 256  # Number of files that are tokenised at once, on all cores.
FIRST_S: Final = 2.0  # A request waits this long for the first index: enough for 3 MB, or for a stored index.
REST: Final = 20.0  # Pause between two updates, as a multiple of their duration: at most 5 % of a core.

REPLIES: Final = ".replies"  # Past replies in tokens: int32, -1 after each.

_File = tuple[str, int, int]  # The path, the size in bytes, and the time of the last change in nanoseconds.


class OwnTexts:
    """An index of the text files below `folders` and, with `keeps_replies`, of this user's past replies.

    Hidden files and folders, `JUNK`, links, long files, and files that are not UTF-8 are ignored. `offload` runs
    the update of the index. Raises `UsageError` for a path that is not a folder.
    """

    def __init__(self, folders: Sequence[str], *, keeps_replies: bool, offload: Offload) -> None:
        self._folders = [Path(folder).expanduser().resolve() for folder in folders]
        if missing := [folder for folder in self._folders if not folder.is_dir()]:
            raise UsageError(f"{missing[0]} is no folder of texts to draft from.")
        self._keeps_replies = keeps_replies
        self._offload = offload
        self._tokenizer = ""
        self._index: TextIndex | None = None
        # The number of tokens of each file, in the order of the index.
        self._files: dict[_File, int] = {}
        self._making: asyncio.Future[None] | None = None
        self._rests_until_s = 0.0
        self._has_logged = False

    def index(self) -> TextIndex | None:
        """The latest index; None before the first update."""
        return self._index

    def drafts(self, tokens: Sequence[int]) -> OwnDrafts:
        """Drafts for a request with these tokens so far."""
        return OwnDrafts(self.index, tokens)

    async def begin(self, codec: TextTokenizer, tokenizer: str) -> None:
        """Update the index for the tokenizer with this digest; wait at most `FIRST_S` for the first one."""
        self._tokenizer = tokenizer
        if (self._making is None or self._making.done()) and time.monotonic() >= self._rests_until_s:
            self._making = asyncio.ensure_future(self._offload(partial(self._refresh, codec)))
        if self._index is None and self._making is not None:
            await asyncio.wait([self._making], timeout=FIRST_S)

    def keep(self, reply: Sequence[int]) -> None:
        """Store the tokens of a reply, if replies are kept; a failure is logged."""
        if self._keeps_replies and self._tokenizer:
            try:
                own_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
                with self._replies.open("ab") as file:
                    file.write(array("i", (*reply, -1)).tobytes())
            except OSError as error:
                logger.warning("a reply cannot be kept: %s", error)

    @property
    def _replies(self) -> Path:
        return own_folder() / f"{self._tokenizer[:32]}{REPLIES}"

    def _refresh(self, codec: TextTokenizer) -> None:
        """Rebuild the index if files have changed. A failure is logged, and the previous index is kept."""
        began_s = time.monotonic()
        key = json.dumps([self._tokenizer, *map(str, self._folders), self._keeps_replies]).encode()
        kept = own_folder() / f"{_digest(key)}.index"
        try:
            own_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._index is None:
                self._read(kept)
            found = self._found()
            if self._index is None or found != list(self._files):
                self._index, self._files = self._made(found, codec)
                data = self._index.words + self._index.order.tobytes()
                header = json.dumps([_digest(data), [(*file, tokens) for file, tokens in self._files.items()]])
                replace_bytes(kept, header.encode() + b"\n" + data)
                for old in sorted(own_folder().glob("*.index"), key=lambda file: -file.stat().st_mtime)[MAX_KEPT:]:
                    old.unlink()
        except (OSError, ValueError, CosineError, ImportError) as error:
            logger.warning("the texts to draft from cannot be indexed: %s", error)
        now_s = time.monotonic()
        self._rests_until_s = now_s + REST * (now_s - began_s)

    def _read(self, kept: Path) -> None:
        """Load the index of an earlier run, unless it is missing or broken."""
        with suppress(OSError, ValueError, TypeError):
            header, data = kept.read_bytes().split(b"\n", 1)
            digest, files = json.loads(header)
            if digest == _digest(data):
                half = len(data) // 2
                self._index = TextIndex(data[:half], memoryview(data)[half:].cast("i"))
                self._files = {(path, size, at_ns): tokens for path, size, at_ns, tokens in files}

    def _found(self) -> list[_File]:
        """Return at most `MAX_BYTES` of files to index, the latest first; past replies are shortened."""
        found = set(islice(chain.from_iterable(map(_files_below, self._folders)), MAX_FILES))
        replies = self._replies
        if self._keeps_replies and replies.exists():
            if replies.stat().st_size > MAX_REPLIES_BYTES:
                replace_bytes(replies, replies.read_bytes()[-MAX_REPLIES_BYTES // 2 :])
            found.add((str(replies), replies.stat().st_size, replies.stat().st_mtime_ns))
        latest = sorted(found, key=lambda file: (-file[2], file))
        count = bisect_right(list(accumulate(size for _, size, _ in latest)), MAX_BYTES)
        if count < len(latest) and not self._has_logged:
            logger.warning("The texts to draft from exceed %d MB: the latest are used.", MAX_BYTES // 10**6)
            self._has_logged = True
        return latest[:count]

    def _made(self, found: list[_File], codec: TextTokenizer) -> tuple[TextIndex, dict[_File, int]]:
        """Return the index of these files; files in the previous index are not read again."""
        known: dict[_File, TokenArray] = {}
        if self._index is not None:
            known = dict(zip(self._files, self._index.texts(self._files.values()), strict=True))
        anew = [file for file in found if file not in known]
        for start in range(0, len(anew), BATCH_FILES):
            batch = anew[start : start + BATCH_FILES]
            known |= zip(batch, _tokenised([Path(path) for path, _, _ in batch], codec), strict=True)
        texts = [known[file] for file in found]
        return TextIndex.of(texts), {file: len(text) for file, text in zip(found, texts, strict=True)}


def _files_below(folder: Path) -> Iterator[_File]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in JUNK and not name.startswith(".")]
        for path in (os.path.join(place, name) for name in names if not name.startswith(".")):
            # It may be gone.
            with suppress(OSError):
                of = os.lstat(path)
                if S_ISREG(of.st_mode) and of.st_size <= MAX_FILE_BYTES:
                    yield path, of.st_size, of.st_mtime_ns


def _tokenised(paths: Sequence[Path], codec: TextTokenizer) -> "list[TokenArray]":
    """Return the tokens of files, and after -1 those of their text as a JSON string; none without UTF-8 text.

    Many models write the arguments of tools in JSON: changed files of this repository, so written, take 0.43 times
    as many passes with that.
    """
    import numpy as np

    texts = []
    for path in paths:
        try:
            data = b"" if path.suffix == REPLIES else path.read_bytes()
            texts.append("" if b"\0" in data else data.decode())
        except (OSError, UnicodeError):
            texts.append("")
    plain = codec.encode_all(texts)
    quoted = codec.encode_all([json.dumps(text, ensure_ascii=False) for text in texts])
    return [
        np.fromfile(path, np.int32) if path.suffix == REPLIES else np.array([*tokens, -1, *in_json], np.int32)
        for path, tokens, in_json in zip(paths, plain, quoted, strict=True)
    ]


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def own_folder() -> Path:
    """The folder of indices and past replies, which may be deleted at any time."""
    return state_folder() / "own-texts"


def forget_all() -> None:
    """Delete indices and past replies."""
    rmtree(own_folder(), ignore_errors=True)
