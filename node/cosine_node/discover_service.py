"""Serves `/cosine/discover/1.0.0`: signed records verbatim, and the tokenizer files of the node's target."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cosine_p2p.channel import Channel
from cosine_p2p.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.errors import CosineError, ErrorCode, PeerLost, RemoteProtocolError
from cosine_protocol.file_messages import AskFile, FilePiece
from cosine_protocol.protocols import DISCOVER

ReadRecords = Callable[[str], Awaitable[Sequence[bytes]]]

READ_TIMEOUT_S: Final = 10.0
"""A choice: longer than a look-up in the DHT takes, shorter than a client waits."""

MAX_RECORDS_BYTES: Final = limits.MAX_FRAME_BYTES // 2
"""A frame holds this much beside the array around it."""


class DiscoverService:
    """Answers one question after the other on each stream.

    `read_records` gives the signed records under a cell name, from the DHT; it may fail with a `CosineError`.
    """

    def __init__(self, read_records: ReadRecords, files: TokenizerFiles | None = None) -> None:
        self._read_records = read_records
        self._files = files
        self._digest = files.digest if files is not None else None

    async def handle(self, stream: Stream) -> None:
        """A `StreamHandler` for `DISCOVER`."""
        async with Channel(stream, DISCOVER) as channel:
            try:
                while True:
                    channel.post(await self._answer(await channel.receive()))
            except PeerLost:
                return
            except RemoteProtocolError as error:
                channel.post(m.Error(0, ErrorCode.MALFORMED, str(error)[:256], None))

    async def _answer(self, question: m.Message) -> m.Message:
        match question:
            case AskFile():
                return self._file_piece(question)
            case m.AskRecords():
                return await self._records(question)
            case _:
                raise RemoteProtocolError(f"{type(question).__name__} is no question")

    def _file_piece(self, question: AskFile) -> m.Message:
        if self._files is None or question.tokenizer_digest != self._digest:
            return m.Error(question.number, ErrorCode.WRONG_TOKENIZER, "this node has another tokenizer", None)
        data = self._files.files.get(question.name, b"")
        piece = data[question.offset : question.offset + limits.MAX_CHUNK_BYTES]
        return FilePiece(question.number, len(data), piece)

    async def _records(self, question: m.AskRecords) -> m.Message:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                records = await self._read_records(question.key)
        except (CosineError, TimeoutError):
            return m.Error(question.number, ErrorCode.INTERNAL, "the directory did not answer", None)
        sent: list[bytes] = []
        for record in records[: limits.MAX_CELL_OWNERS]:
            if len(record) <= limits.MAX_RECORD_BYTES and sum(map(len, sent)) + len(record) <= MAX_RECORDS_BYTES:
                sent.append(record)
        return m.Records(question.number, tuple(sent))
