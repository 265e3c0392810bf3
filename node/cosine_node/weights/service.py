"""Serves `/cosine/weights/1.0.0`: the manifest, files and tensors of this node's target."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serving_budget
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.fields import MAX_CHUNK_BYTES
from cosine_protocol.stream import Error
from cosine_protocol.weights import WEIGHTS, AskWeights, WeightBytes, WeightKind

MAX_STREAMS: Final = 8
"""Bounds the send buffers, of `MAX_SENT_AHEAD_BYTES` each, to 10 MiB."""
MAX_OF_PEER: Final = 2
"""One open stream, and one that is ending."""
PIECE_RATE: Final = 512.0
"""Answers per second for one peer: 128 MiB, a gigabit link."""
PIECE_BURST: Final = 512.0
IDLE_S: Final = 30.0
"""Timeout of an idle stream, which others want."""
RETRY_S: Final = 10.0
"""Sent to a peer if all streams are taken."""


class WeightsService:
    """Answers the questions of each stream in turn. The receiver checks all data."""

    def __init__(self, held: HeldWeights) -> None:
        self._held = held
        self._digest = held.content_digest
        self._rows = held.manifest.tensors
        bits = "".join("1" if row.name in held.tensors else "0" for row in self._rows)
        width = -(-len(bits) // 8)
        self._bits = int(bits.ljust(8 * width, "0") or "0", 2).to_bytes(width)
        self._budget = CallBudget(peer_rate=PIECE_RATE, peer_burst=PIECE_BURST)
        self._reads = serving_budget()
        self._streams = Counter[str]()

    async def handle(self, stream: Stream) -> None:
        peer_id = stream.peer_id
        async with Channel(stream, WEIGHTS, budget=self._reads) as channel:
            if self._streams.total() >= MAX_STREAMS or self._streams[peer_id] >= MAX_OF_PEER:
                channel.post(Error(0, ErrorCode.OVERLOADED, "too many read weights here", RETRY_S))
                return
            self._streams[peer_id] += 1
            try:
                while True:
                    async with asyncio.timeout(IDLE_S):
                        question = await channel.receive()
                    answer = await self._answer(question)
                    await asyncio.sleep(self._budget.owe(peer_id, 1, now_s=asyncio.get_running_loop().time()))
                    async with asyncio.timeout(IDLE_S):
                        await channel.send(answer)
            except (PeerLost, TimeoutError):
                return
            except RemoteProtocolError as error:
                channel.post(Error(0, ErrorCode.MALFORMED, str(error)[:256], None))
            finally:
                self._streams[peer_id] -= 1
                if not self._streams[peer_id]:
                    del self._streams[peer_id]

    async def _answer(self, question: Message) -> Message:
        if not isinstance(question, AskWeights):
            raise RemoteProtocolError(f"{type(question).__name__} is not a question")
        try:
            if question.content_digest != self._digest:
                raise PeerError(ErrorCode.WRONG_TARGET, "this node serves another model")
            total_bytes, data = await self._bytes(WeightKind(question.kind), question.index, question.offset)
        except PeerError as refused:
            return Error(question.number, refused.code, refused.message, None)
        except OSError:
            return Error(question.number, ErrorCode.INTERNAL, "the weights cannot be read", None)
        return WeightBytes(question.number, total_bytes, data)

    async def _bytes(self, kind: WeightKind, index: int, offset: int) -> tuple[int, bytes]:
        """The total size and the bytes from an offset on. Raises `PeerError` and `OSError`."""
        match kind:
            case WeightKind.MANIFEST:
                whole = self._held.encoded
            case WeightKind.HELD:
                whole = self._bits
            case WeightKind.PART:
                rows = self._held.manifest.parts
                if index >= len(rows):
                    raise PeerError(ErrorCode.NOT_HELD, "there is no such part")
                whole = self._held.parts[rows[index].name]
            case WeightKind.DIGESTS | WeightKind.TENSOR:
                placed = self._held.tensors.get(self._rows[index].name) if index < len(self._rows) else None
                if placed is None:
                    raise PeerError(ErrorCode.NOT_HELD, "this tensor is not here")
                tensor = placed.tensor
                if kind is WeightKind.TENSOR:
                    size_bytes = max(0, min(MAX_CHUNK_BYTES, tensor.size_bytes - offset))
                    data = await self._read(placed.file, tensor.start + offset, size_bytes)
                    return tensor.size_bytes, data
                whole = b"".join(tensor.digests)
        return len(whole), whole[offset : offset + MAX_CHUNK_BYTES]

    async def _read(self, file: Path, start: int, size_bytes: int) -> bytes:
        """Read bytes of a file in a thread. Raises `OSError`."""

        def read() -> bytes:
            with file.open("rb") as opened:
                opened.seek(start)
                return opened.read(size_bytes)

        return await asyncio.to_thread(read)
