"""Weights that one peer serves, over one stream with concurrent questions."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import Channel, read_budget
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.fields import CONTENT_DIGEST_BYTES, MAX_CHUNK_BYTES
from cosine_protocol.stream import Error
from cosine_protocol.weights import (
    MAX_MANIFEST_BYTES,
    WEIGHTS,
    AskWeights,
    Manifest,
    WeightBytes,
    WeightKind,
    manifest_digest,
    pieces_root,
)

ANSWER_TIMEOUT_S: Final = 30.0
"""With eight concurrent pieces at least 70 kB/s each; slower peers lose to other sources."""
READ_FACTOR: Final = 256.0
"""A KiB of a tensor is only copied and hashed, at 1 GiB/s; a KiB of other messages is decoded."""
UNDER_WAY: Final = 8
"""Number of concurrent pieces, 2 MiB: they fill a link of 160 Mbit/s with a round trip of 100 ms."""


class PeerSource:
    """A peer that serves the model of a content digest; `opened` dials it.

    Methods raise `PeerLost`, `PeerError` if the peer refuses, and `RemoteProtocolError` for wrong data.
    """

    most_pieces: int = 1
    run_pieces: int = 1
    readers: int = UNDER_WAY

    def __init__(self, channel: Channel, content_digest: bytes) -> None:
        self.name = channel.peer_id
        self._channel = channel
        self._digest = content_digest
        self._number = 0
        self._asked = deque[tuple[int, asyncio.Future[WeightBytes]]]()
        self._held = b""
        self._failure: Exception | None = None

    @classmethod
    @asynccontextmanager
    async def opened(cls, transport: Transport, peer_id: str, content_digest: bytes) -> AsyncIterator["PeerSource"]:
        """Dial a peer; the stream ends with the block. Raises `PeerLost`."""
        stream = await transport.dial(peer_id, WEIGHTS)
        async with Channel(stream, WEIGHTS, budget=read_budget(factor=READ_FACTOR)) as channel:
            source = cls(channel, content_digest)
            reading = asyncio.ensure_future(source._read_answers())
            try:
                yield source
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def manifest(self) -> tuple[Manifest, bytes]:
        encoded = await self._whole(WeightKind.MANIFEST, 0, lambda size: size <= MAX_MANIFEST_BYTES)
        if manifest_digest(encoded) != self._digest:
            raise RemoteProtocolError(f"{self.name} sent a manifest of another model")
        return Manifest.decode(encoded), encoded

    async def parts(self, manifest: Manifest) -> dict[str, bytes]:
        found = {}
        for index, part in enumerate(manifest.parts):
            data = await self._whole(WeightKind.PART, index, part.size_bytes.__eq__)
            if hashlib.sha256(data).digest() != part.sha256:
                raise RemoteProtocolError(f"{self.name} sent another {part.name}")
            found[part.name] = data
        return found

    async def look(self, manifest: Manifest) -> None:
        size = -(-len(manifest.tensors) // 8)
        self._held = await self._whole(WeightKind.HELD, 0, size.__eq__)

    def holds(self, row: int) -> bool:
        return bool(self._held[row // 8] >> (7 - row % 8) & 1)

    def note_lacks(self, row: int) -> None:
        held = bytearray(self._held)
        held[row // 8] &= ~(1 << (7 - row % 8))
        self._held = bytes(held)

    async def digests(self, manifest: Manifest, row: int) -> list[bytes]:
        tensor = manifest.tensors[row]
        size = CONTENT_DIGEST_BYTES
        joined = await self._whole(WeightKind.DIGESTS, row, (tensor.pieces * size).__eq__)
        digests = [joined[at : at + size] for at in range(0, len(joined), size)]
        if pieces_root(digests) != tensor.root:
            raise RemoteProtocolError(f"{self.name} sent wrong digests of {tensor.name}")
        return digests

    async def read(self, manifest: Manifest, row: int, first_piece: int, count: int) -> bytes:
        """The unchecked bytes of a piece; `count` is 1."""
        assert count == self.most_pieces
        tensor = manifest.tensors[row]
        answer = await self._ask(WeightKind.TENSOR, row, first_piece * MAX_CHUNK_BYTES)
        if (answer.total_bytes, len(answer.data)) != (tensor.size_bytes, tensor.piece_bytes(first_piece)):
            raise RemoteProtocolError(f"{self.name} sent a piece of {tensor.name} that does not fit")
        return answer.data

    async def _whole(self, kind: WeightKind, index: int, fits: Callable[[int], bool]) -> bytes:
        """All bytes of something, if its length fits."""
        data = bytearray()
        while True:
            answer = await self._ask(kind, index, len(data))
            due_bytes = min(answer.total_bytes - len(data), MAX_CHUNK_BYTES)
            # Only the last piece may be short, else a peer could send tiny pieces for ever.
            if not fits(answer.total_bytes) or len(answer.data) != due_bytes:
                raise RemoteProtocolError(f"{self.name} sent something of a wrong length")
            data += answer.data
            if len(data) == answer.total_bytes:
                return bytes(data)

    async def _ask(self, kind: WeightKind, index: int, offset: int) -> WeightBytes:
        if self._failure is not None:
            raise self._failure
        self._number += 1
        answered: asyncio.Future[WeightBytes] = asyncio.get_running_loop().create_future()
        self._asked.append((self._number, answered))
        self._channel.post(AskWeights(self._number, self._digest, kind, index, offset))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answered
        except TimeoutError:
            raise PeerLost(self.name, f"no answer within {ANSWER_TIMEOUT_S:g} s") from None

    async def _read_answers(self) -> None:
        """Match answers to questions until the stream ends."""
        try:
            while True:
                self._take(await self._channel.receive())
        except (PeerLost, PeerError, RemoteProtocolError) as error:
            self._failure = error
        finally:
            self._failure = self._failure or PeerLost(self.name, "the stream was given up")
            for _, answered in self._asked:
                if not answered.done():
                    answered.set_exception(self._failure)
                    # Mark it as retrieved: no task may await it.
                    answered.exception()
            self._asked.clear()

    def _take(self, answer: Message) -> None:
        if isinstance(answer, Error) and answer.number == 0:
            raise PeerError(answer.code, answer.message, answer.retry_after_s)
        if not isinstance(answer, WeightBytes | Error) or not self._asked or self._asked[0][0] != answer.number:
            raise RemoteProtocolError(f"{self.name} did not answer what was asked")
        _, answered = self._asked.popleft()
        if answered.done():
            return
        if isinstance(answer, Error):
            answered.set_exception(PeerError(answer.code, answer.message, answer.retry_after_s))
            answered.exception()
        else:
            answered.set_result(answer)


def is_refusal_of_one(error: Exception) -> bool:
    """True if a peer lacks a tensor and may have others."""
    return isinstance(error, PeerError) and error.code == ErrorCode.NOT_HELD
