"""Serves `/cosine/discover/1.0.0`: signed records verbatim, and the tokenizer files of the node's target."""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serving_budget
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.errors import CosineError, ErrorCode, PeerLost, RemoteProtocolError
from cosine_protocol.protocols import DISCOVER

ReadCell = Callable[[str], Awaitable[Sequence[bytes]]]

REUSE_S: Final = 2.0
"""Clients keep what they found as long: a record lives for minutes, and a look-up asks thirty nodes."""
MAX_CELLS: Final = 256
"""Bounds memory: 64 MiB of full cells of the largest records."""
READ_TIMEOUT_S: Final = 10.0
"""Longer than a look-up in the DHT takes, shorter than a client waits."""
QUESTION_RATE: Final = 20.0
"""Of questions a second: a client reads up to sixteen cells together, and keeps what it found for 2 s."""
QUESTION_BURST: Final = 1024.0
"""Twice the cells that one reading of a whole directory is bounded to."""
MAX_RECORDS_BYTES: Final = limits.MAX_FRAME_BYTES // 2
"""A frame holds this much beside the array around it."""
MAX_COMING: Final = 16
"""A client reads up to sixteen cells together."""


class DiscoverService:
    """Answers the questions of each stream in order; the next ones are read up meanwhile.

    `read_records` gives the signed records under a cell name, from the DHT; it may fail with a `CosineError`.
    """

    def __init__(
        self,
        read_records: ReadCell,
        files: TokenizerFiles | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_records = read_records
        self._cells: Remembered[str, asyncio.Future[Sequence[bytes]]] = Remembered(MAX_CELLS, forgotten_s=REUSE_S)
        self._budget = CallBudget(peer_rate=QUESTION_RATE, peer_burst=QUESTION_BURST)
        self._clock = clock
        self._reads = serving_budget()
        self._files = files
        self._digest = files.digest if files is not None else None
        self._compressed: dict[tuple[str, int], bytes] = {}

    async def handle(self, stream: Stream) -> None:
        """A `StreamHandler` for `DISCOVER`."""
        async with Channel(stream, DISCOVER, budget=self._reads) as channel:
            coming: asyncio.Queue[asyncio.Task[m.Message]] = asyncio.Queue(MAX_COMING)
            answering = asyncio.ensure_future(_post_all(channel, coming))
            try:
                while True:
                    question = await channel.receive()
                    if not isinstance(question, m.AskFile | m.AskRecords):
                        raise RemoteProtocolError(f"{type(question).__name__} is no question")
                    await coming.put(asyncio.ensure_future(self._answer(question, stream.peer_id)))
            except PeerLost:
                return
            except RemoteProtocolError as error:
                channel.post(m.Error(0, ErrorCode.MALFORMED, str(error)[:256], None))
            finally:
                answering.cancel()
                while not coming.empty():
                    coming.get_nowait().cancel()

    async def _answer(self, question: m.AskFile | m.AskRecords, peer_id: str) -> m.Message:
        match question:
            case m.AskFile():
                return await self._file_piece(question)
            case m.AskRecords() if not self._budget.spend(peer_id, 1, now_s=self._clock()):
                return m.Error(question.number, ErrorCode.OVERLOADED, "too many questions", 1 / QUESTION_RATE)
            case _:
                return await self._records(question)

    async def _file_piece(self, question: m.AskFile) -> m.Message:
        if self._files is None or question.tokenizer_digest != self._digest:
            return m.Error(question.number, ErrorCode.WRONG_TOKENIZER, "this node has another tokenizer", None)
        data = self._files.answer(question.name)
        piece = data[question.offset : question.offset + limits.MAX_CHUNK_BYTES]
        # Each of few pieces is compressed once, whoever asks how often.
        if piece and question.compresses and question.offset % limits.MAX_CHUNK_BYTES == 0:
            place = (question.name, question.offset)
            if place not in self._compressed:
                self._compressed[place] = await asyncio.to_thread(zlib.compress, piece)
            if len(self._compressed[place]) < len(piece):
                return m.FilePiece(question.number, len(data), self._compressed[place], is_compressed=True)
        return m.FilePiece(question.number, len(data), piece)

    async def read_cell(self, cell: str) -> Sequence[bytes]:
        """The signed records in a cell, one answer for all who ask within `REUSE_S`. Raises what reading raises."""
        now_s = self._clock()
        reading = self._cells.get(cell, now_s)
        if reading is None or (reading.done() and (reading.cancelled() or reading.exception() is not None)):
            reading = asyncio.ensure_future(self._read_records(cell))
            self._cells.note(cell, reading, now_s)
        # Whoever asked first may give up; others wait for the same answer.
        return await asyncio.shield(reading)

    async def _records(self, question: m.AskRecords) -> m.Message:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                records = await self.read_cell(question.key)
        except (CosineError, TimeoutError):
            return m.Error(question.number, ErrorCode.INTERNAL, "the directory did not answer", None)
        sent: list[bytes] = []
        for record in records[: limits.MAX_CELL_OWNERS]:
            if len(record) <= limits.MAX_RECORD_BYTES and sum(map(len, sent)) + len(record) <= MAX_RECORDS_BYTES:
                sent.append(record)
        return m.Records(question.number, tuple(sent))


async def _post_all(channel: Channel, coming: "asyncio.Queue[asyncio.Task[m.Message]]") -> None:
    """Post answers in the order of their questions."""
    while True:
        channel.post(await (await coming.get()))
