"""Fetches tensors into a partial folder from several sources at once, and checks each piece.

Each source has readers that take runs of missing pieces from a board (`pieces`), so that fast sources fetch more. A
piece is checked with its digest, from any source, which the manifest's root proves. The hub has no digests: its
tensors are read whole, and checked with the root. A source of wrong data is not asked again.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cosine_engine.models.partial_folder import PartialFolder, TensorFile
from cosine_node.weights.peer_source import is_refusal_of_one
from cosine_node.weights.pieces import PieceBoard, PieceRun
from cosine_p2p.storage.memory import Remembered
from cosine_protocol.errors import PeerError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.weights import PIECE_BYTES, Manifest, pieces_root

LOG = logging.getLogger(__name__)
LOOK_S: Final = 10.0
"""Interval of look-ups of new sources."""
IDLE_S: Final = 0.2
"""Pause of a reader without a piece."""
REST_S: Final = 10.0
"""Pause before asking a lost source again, unless it names another one."""
TELL_S: Final = 5.0
"""Interval of progress reports."""


class Source(Protocol):
    """A source of tensors. Raises as `PeerSource`.

    readers: Number of concurrent readers.
    most_pieces: Maximum number of pieces per question.
    run_pieces: Maximum number of pieces assigned to a reader at once.
    """

    name: str
    readers: int
    most_pieces: int
    run_pieces: int

    async def look(self, manifest: Manifest) -> None: ...

    def holds(self, row: int) -> bool: ...

    def note_lacks(self, row: int) -> None: ...

    async def digests(self, manifest: Manifest, row: int) -> list[bytes] | None:
        """The SHA-256 of a tensor's pieces, checked with its root. None if unknown."""

    async def read(self, manifest: Manifest, row: int, first_piece: int, count: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SourcePlace:
    name: str
    opened: Callable[[], AbstractAsyncContextManager[Source]]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Progress of a fetch. `lacking` is a sentence about tensors without a source."""

    fetched_bytes: int
    wanted_bytes: int
    sources: int
    lacking: str = ""

    def __str__(self) -> str:
        if self.lacking:
            return self.lacking
        mib = 1 << 20
        fetched, wanted = self.fetched_bytes / mib, self.wanted_bytes / mib
        sources = "one source" if self.sources == 1 else f"{self.sources} sources"
        return f"{fetched:,.0f} of {wanted:,.0f} MiB are here, read from {sources}."


class WeightsFetch:
    """Fetches the wanted rows of a manifest, and those that share their files."""

    def __init__(
        self,
        folder: PartialFolder,
        wanted: Collection[int],
        *,
        what: str,
        tell: Callable[[FetchProgress], None],
    ) -> None:
        """`what` describes the rows in sentences."""
        self._folder = folder
        self._manifest = folder.manifest
        self._what = what
        self._tell = tell
        self._files = [file for file in folder.files_of(wanted) if not folder.is_whole(file)]
        self._rows = sorted(row for file in self._files for row in file.starts)
        self._found: dict[int, list[bytes]] = {}
        self._digests: dict[int, list[bytes]] = {}
        self._asking: dict[int, asyncio.Lock] = {}
        self._writing = {row: asyncio.Lock() for row in self._rows}
        self._open: dict[str, Source] = {}
        self._banned: set[str] = set()
        self._resting = Remembered[str, float](1024)
        self._fetched_bytes = 0
        self._board = PieceBoard(())
        self._left_of: dict[Path, int] = {}

    @property
    def wanted_bytes(self) -> int:
        return sum(self._manifest.tensors[row].size_bytes for row in self._rows)

    async def run(self, find: Callable[[], Awaitable[Sequence[SourcePlace]]]) -> None:
        """Fetch everything; waits for sources if there are none. Raises `UsageError` if the disk fails."""
        await self._begin()
        drawing: dict[str, asyncio.Task[None]] = {}
        telling = asyncio.ensure_future(self._tell_often())
        try:
            while not self._board.is_done:
                for place in await find():
                    is_resting = asyncio.get_running_loop().time() < (self._resting.get(place.name) or 0.0)
                    if place.name not in drawing and place.name not in self._banned and not is_resting:
                        drawing[place.name] = asyncio.ensure_future(self._draw(place))
                await asyncio.wait(
                    [*drawing.values(), telling], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                ended = {name: task for name, task in drawing.items() if task.done()}
                for name, task in ended.items():
                    del drawing[name]
                    task.result()
                if ended and not drawing and not self._board.is_done:
                    await asyncio.sleep(IDLE_S)
        finally:
            tasks = [telling, *drawing.values()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._tell(self.progress())

    def progress(self) -> FetchProgress:
        lacking = ""
        absent = sorted(
            row for row in self._board.lacking_rows if not any(source.holds(row) for source in self._open.values())
        )
        if absent:
            lacking = (
                f"No node offers {len(absent)} of the {len(self._rows)} tensors of {self._what} now, such as "
                f"{self._manifest.tensors[absent[0]].name}; what is here stays."
            )
        return FetchProgress(self._fetched_bytes, self.wanted_bytes, len(self._open), lacking)

    async def _tell_often(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._tell(self.progress())

    async def _begin(self) -> None:
        """Resume existing drafts."""
        tensors = self._manifest.tensors
        lacking: list[tuple[int, int]] = []
        try:
            self._folder.check_room(self.wanted_bytes - sum(_taken_bytes(file) for file in self._files))
            for file in self._files:
                self._left_of[file.path] = 0
                for row, digests in (await asyncio.to_thread(self._folder.begin, file)).items():
                    if (digests or not tensors[row].pieces) and pieces_root(digests) == tensors[row].root:
                        self._fetched_bytes += tensors[row].size_bytes
                        continue
                    self._found[row] = digests
                    lacking += [(row, piece) for piece in range(tensors[row].pieces)]
                    self._left_of[file.path] += tensors[row].pieces
                if not self._left_of[file.path]:
                    await asyncio.to_thread(self._folder.finish, file)
        except OSError as error:
            raise self._unwritable(error) from None
        self._board = PieceBoard(lacking)

    async def _draw(self, place: SourcePlace) -> None:
        """Read from one source until all pieces have arrived, or the source fails."""
        try:
            async with place.opened() as source:
                await source.look(self._manifest)
                self._open[place.name] = source
                readers = [asyncio.ensure_future(self._read(source)) for _ in range(source.readers)]
                try:
                    await asyncio.gather(*readers)
                finally:
                    for reader in readers:
                        reader.cancel()
                    await asyncio.gather(*readers, return_exceptions=True)
        except RemoteProtocolError as error:
            LOG.warning("%s is no longer asked for weights: %s", place.name, error)
            self._banned.add(place.name)
        except (PeerLost, PeerError) as error:
            LOG.info("%s gives no weights now: %s", place.name, error)
            rest_s = error.retry_after_s if error.retry_after_s is not None else REST_S
            self._resting.note(place.name, asyncio.get_running_loop().time() + rest_s)
        finally:
            self._open.pop(place.name, None)

    async def _read(self, source: Source) -> None:
        while not self._board.is_done:
            run = self._board.take(source.name, holds=source.holds, most=source.run_pieces)
            if run is None:
                await asyncio.sleep(IDLE_S)
                continue
            try:
                await self._bring(source, run)
            except PeerError as error:
                self._board.give_back(run, source.name)
                if not is_refusal_of_one(error):
                    raise
                source.note_lacks(run.row)
            except BaseException:
                self._board.give_back(run, source.name)
                raise

    async def _bring(self, source: Source, run: PieceRun) -> None:
        """Read, check and write the pieces of a run."""
        tensor = self._manifest.tensors[run.row]
        digests = await self._digests_of(run.row, source)
        if digests is None and run.count < tensor.pieces:
            # Without digests of the pieces only a whole tensor can be checked.
            self._board.give_back(run, source.name)
            await asyncio.sleep(IDLE_S)
            return
        read: list[bytes] = []
        for first in range(run.first, run.first + run.count, source.most_pieces):
            pieces = range(first, min(first + source.most_pieces, run.first + run.count))
            async with self._writing[run.row]:
                found = self._found[run.row]
                if digests is not None and found and all(found[piece] == digests[piece] for piece in pieces):
                    await self._count(run.row, pieces)
                    continue
            data = await source.read(self._manifest, run.row, first, len(pieces))
            cut = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
            read += [hashlib.sha256(piece).digest() for piece in cut]
            is_wrong = digests is not None and read[-len(pieces) :] != [digests[piece] for piece in pieces]
            if is_wrong or len(cut) != len(pieces):
                raise RemoteProtocolError(f"{source.name} sent other bytes of {tensor.name}")
            is_late = digests is None and run.count > 1
            if digests is None and not is_late:
                self._prove(source, run.row, read)
            async with self._writing[run.row]:
                for piece, part in zip(pieces, cut, strict=True):
                    # Unchecked data never replaces checked pieces.
                    if self._board.lacks(run.row, piece):
                        await self._write(run.row, piece, part)
                if not is_late:
                    await self._count(run.row, pieces)
        if digests is None and run.count > 1:
            self._prove(source, run.row, read)
            async with self._writing[run.row]:
                await self._count(run.row, run.pieces)

    async def _write(self, row: int, piece: int, data: bytes) -> None:
        if self._found[row]:
            self._found[row][piece] = b""
        await self._to_the_end(self._folder.write, row, piece, data)

    async def _to_the_end(self, work: Callable[..., None], *args: Any) -> None:
        """Run `work` in a thread to its end, even if this task is cancelled.

        Otherwise the thread would run concurrently with later ones, or never start although its pieces count as
        done.
        """
        working = asyncio.ensure_future(asyncio.to_thread(work, *args))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait((working,))
            raise
        except OSError as error:
            raise self._unwritable(error) from None

    def _prove(self, source: Source, row: int, digests: list[bytes]) -> None:
        tensor = self._manifest.tensors[row]
        if pieces_root(digests) != tensor.root:
            raise RemoteProtocolError(f"{source.name} sent other bytes of {tensor.name}")

    async def _digests_of(self, row: int, source: Source) -> list[bytes] | None:
        """The digests of a tensor's pieces. None if they are not needed, or no open source has them."""
        if self._manifest.tensors[row].pieces == 1:
            return None
        async with self._asking.setdefault(row, asyncio.Lock()):
            if row not in self._digests:
                digests = await source.digests(self._manifest, row)
                others = (other for other in list(self._open.values()) if other is not source and other.holds(row))
                while digests is None and (other := next(others, None)) is not None:
                    try:
                        digests = await other.digests(self._manifest, row)
                    except (PeerLost, PeerError, RemoteProtocolError):
                        continue  # Its own readers handle that.
                if digests is None:
                    return None
                self._digests[row] = digests
            return self._digests[row]

    async def _count(self, row: int, pieces: Collection[int]) -> None:
        """Count pieces that have arrived, and complete their file after the last ones."""
        tensor = self._manifest.tensors[row]
        fresh = [piece for piece in pieces if self._board.note_done(row, piece)]
        self._fetched_bytes += sum(map(tensor.piece_bytes, fresh))
        file = next(file for file in self._files if row in file.starts)
        self._left_of[file.path] -= len(fresh)
        if fresh and not self._left_of[file.path]:
            await self._to_the_end(self._folder.finish, file)

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"{self._folder.path} cannot be written ({error.strerror}); what is there stays.")


def _taken_bytes(file: TensorFile) -> int:
    """Disk space of a draft. 0 if there is none."""
    try:
        return 512 * file.draft.stat().st_blocks
    except OSError:
        return 0
