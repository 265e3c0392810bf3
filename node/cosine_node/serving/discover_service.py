"""Serves `/cosine/discover/1.0.0`: signed records of the directory, and the tokenizer files of the target."""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serving_budget
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.codec import Message
from cosine_protocol.discover import DISCOVER, MAX_CELL_OWNERS, AskFile, AskRecords, FilePiece, Records
from cosine_protocol.errors import CosineError, ErrorCode, PeerLost, RemoteProtocolError
from cosine_protocol.fields import MAX_CHUNK_BYTES, MAX_FRAME_BYTES
from cosine_protocol.records import MAX_RECORD_BYTES
from cosine_protocol.stream import Error

ReadCell = Callable[[str], Awaitable[Sequence[bytes]]]
HeldIn = Callable[[str], Sequence[bytes]]

REUSE_S: Final = 2.0
"""Clients cache records as long: a record lives for minutes, and a look-up asks thirty nodes."""
ANSWERS_S: Final = 30.0
"""A tenth of a record's lifetime. Up to this age, cached records are returned while a new look-up runs, which takes
several round trips."""
MAX_CELLS: Final = 256
"""Bounds memory: 64 MiB of full cells of the largest records."""
READ_TIMEOUT_S: Final = 10.0
"""Longer than a DHT look-up takes, shorter than a client waits."""
QUESTION_RATE: Final = 20.0
"""Questions per second: a client reads up to sixteen cells at once, and caches them for 2 s."""
QUESTION_BURST: Final = 1024.0
"""Twice the maximum number of cells in one reading of a whole directory."""
MAX_RECORDS_BYTES: Final = MAX_FRAME_BYTES // 2
"""Fits into a frame with the encoding of the array."""
MAX_COMING: Final = 16
"""A client reads up to sixteen cells at once."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A running or finished look-up of a cell; `shown` are the records found before, at `shown_at_s`."""

    began_s: float
    reading: asyncio.Future[Sequence[bytes]]
    shown: Sequence[bytes]
    shown_at_s: float

    @property
    def has_failed(self) -> bool:
        return self.reading.done() and (self.reading.cancelled() or self.reading.exception() is not None)


class DiscoverService:
    """Answers the questions of each stream concurrently, in order.

    `read_records` reads the signed records of a cell from the DHT; it may raise a `CosineError`. `held_in` returns
    those that this node stores itself.
    """

    def __init__(
        self,
        read_records: ReadCell,
        files: TokenizerFiles | None = None,
        *,
        held_in: HeldIn = lambda cell: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_records = read_records
        self._held_in = held_in
        self._looks: Remembered[str, _Look] = Remembered(MAX_CELLS, forgotten_s=ANSWERS_S)
        self._budget = CallBudget(peer_rate=QUESTION_RATE, peer_burst=QUESTION_BURST)
        self._clock = clock
        self._reads = serving_budget()
        self._files = files
        self._digest = files.digest if files is not None else None
        self._compressed: dict[tuple[str, int], bytes] = {}

    async def handle(self, stream: Stream) -> None:
        """A `StreamHandler` for `DISCOVER`."""
        async with Channel(stream, DISCOVER, budget=self._reads) as channel:
            coming: asyncio.Queue[asyncio.Task[Message]] = asyncio.Queue(MAX_COMING)
            answering = asyncio.ensure_future(_post_all(channel, coming))
            try:
                while True:
                    question = await channel.receive()
                    if not isinstance(question, AskFile | AskRecords):
                        raise RemoteProtocolError(f"{type(question).__name__} is not a question")
                    await coming.put(asyncio.ensure_future(self._answer(question, stream.peer_id)))
            except PeerLost:
                return
            except RemoteProtocolError as error:
                channel.post(Error(0, ErrorCode.MALFORMED, str(error)[:256], None))
            finally:
                answering.cancel()
                while not coming.empty():
                    coming.get_nowait().cancel()

    async def _answer(self, question: AskFile | AskRecords, peer_id: str) -> Message:
        match question:
            case AskFile():
                return await self._file_piece(question)
            case AskRecords() if not self._budget.spend(peer_id, 1, now_s=self._clock()):
                return Error(question.number, ErrorCode.OVERLOADED, "too many questions", 1 / QUESTION_RATE)
            case _:
                return await self._records(question)

    async def _file_piece(self, question: AskFile) -> Message:
        if self._files is None or question.tokenizer_digest != self._digest:
            return Error(question.number, ErrorCode.WRONG_TOKENIZER, "this node has another tokenizer", None)
        data = self._files.answer(question.name)
        piece = data[question.offset : question.offset + MAX_CHUNK_BYTES]
        # Only aligned pieces are compressed, so that the cache is small.
        if piece and question.compresses and question.offset % MAX_CHUNK_BYTES == 0:
            place = (question.name, question.offset)
            if place not in self._compressed:
                self._compressed[place] = await asyncio.to_thread(zlib.compress, piece)
            if len(self._compressed[place]) < len(piece):
                return FilePiece(question.number, len(data), self._compressed[place], is_compressed=True)
        return FilePiece(question.number, len(data), piece)

    async def read_cell(self, cell: str) -> Sequence[bytes]:
        """Return the signed records in a cell, by one look-up per `REUSE_S`. Raises as `read_records`.

        While a look-up runs, return the records of the one before it, if it found any.
        """
        now_s = self._clock()
        look = self._looks.get(cell, now_s)
        if look is None or look.has_failed or now_s - look.began_s >= REUSE_S:
            look = self._look_again(cell, look, now_s)
        if look.shown and not look.reading.done():
            return list(dict.fromkeys((*look.shown, *self._held_in(cell))))
        # Shielded, as others may wait for the same look-up.
        return await asyncio.shield(look.reading)

    def _look_again(self, cell: str, before: _Look | None, now_s: float) -> _Look:
        shown, shown_at_s = (before.shown, before.shown_at_s) if before is not None else ((), now_s)
        if before is not None and before.reading.done() and not before.has_failed:
            shown, shown_at_s = before.reading.result(), before.began_s
        if now_s - shown_at_s >= ANSWERS_S:
            shown = ()
        look = _Look(now_s, asyncio.ensure_future(self._read_records(cell)), shown, shown_at_s)
        # Retrieve the exception, as no task may wait for the look-up any more.
        look.reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        self._looks.note(cell, look, now_s)
        return look

    async def _records(self, question: AskRecords) -> Message:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                records = await self.read_cell(question.key)
        except (CosineError, TimeoutError):
            return Error(question.number, ErrorCode.INTERNAL, "the directory did not answer", None)
        sent: list[bytes] = []
        for record in records[:MAX_CELL_OWNERS]:
            if len(record) <= MAX_RECORD_BYTES and sum(map(len, sent)) + len(record) <= MAX_RECORDS_BYTES:
                sent.append(record)
        return Records(question.number, tuple(sent))


async def _post_all(channel: Channel, coming: "asyncio.Queue[asyncio.Task[Message]]") -> None:
    """Post answers in the order of their questions."""
    while True:
        channel.post(await (await coming.get()))
