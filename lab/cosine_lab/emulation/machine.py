"""The machine and the streams of a simulated node, which count their use and can be made to fail."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cosine_engine.base import BadLogits, Engine, PassAbandoned, Row
from cosine_engine.curve import CostCurve
from cosine_node.passes.runner import Pass, Runner, count_tokens
from cosine_p2p.transport.base import Stream, StreamHandler, Transport

DAMAGE: Final = 0x5A
"""Mask that a damaged byte is XORed with: any value except 0."""


class InlineRunner:
    """Runs passes on the event loop. Each takes the (virtual) time that a curve gives."""

    def __init__(self, engine: Engine, curve: CostCurve) -> None:
        self._engine = engine
        self._curve = curve
        self._ending: asyncio.Future[bool] | None = None

    async def forward(self, rows: Sequence[Row]) -> Pass:
        results = self._engine.forward(rows)
        elapsed_s = self._curve.seconds(count_tokens(rows))
        if await self._is_abandoned_within(elapsed_s):
            for row in rows:
                self._engine.prune(row.sequence, row.nodes)
            raise PassAbandoned("The pass was abandoned.")
        return Pass(results, elapsed_s)

    async def _is_abandoned_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        ending: asyncio.Future[bool] = loop.create_future()
        self._ending = ending
        timer = loop.call_later(seconds, lambda: None if ending.done() else ending.set_result(False))
        try:
            return await ending
        finally:
            timer.cancel()

    def abandon(self) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(True)

    def close(self) -> None:
        return


@dataclass(slots=True)
class MachineUse:
    """Counts of a machine: passes, rows and tokens fed, and busy seconds."""

    passes: int = 0
    rows: int = 0
    tokens: int = 0
    busy_s: float = 0.0


class SimulatedMachine:
    """A `Runner` in virtual time that counts its use and can be made to fail.

    A pass takes `slowness` times its usual time plus `extra_s`; none ends before `stalled_until_s`. The next
    `bad_passes` passes give NaN for their first row.
    """

    def __init__(self, engine: Engine, curve: CostCurve, *, runner: Runner | None = None) -> None:
        self.use = MachineUse()
        self.slowness = 1.0
        self.extra_s = 0.0
        self.stalled_until_s = 0.0
        self.bad_passes = 0
        self._runner = runner or InlineRunner(engine, curve)

    async def forward(self, rows: Sequence[Row]) -> Pass:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        done = await self._runner.forward(rows)
        late_s = (self.slowness - 1) * (loop.time() - began_s) + self.extra_s
        ends_s = max(loop.time() + late_s, self.stalled_until_s)
        if ends_s > loop.time():
            await asyncio.sleep(ends_s - loop.time())
        elapsed_s = loop.time() - began_s
        self.use.passes += 1
        self.use.rows += len(rows)
        self.use.tokens += count_tokens(rows)
        self.use.busy_s += elapsed_s
        results = done.results
        if self.bad_passes:
            self.bad_passes -= 1
            error = BadLogits("a pass gave NaN for this sequence")
            results = [replace(results[0], choices=(), error=error), *results[1:]]
        return Pass(results, elapsed_s)

    def abandon(self) -> None:
        self._runner.abandon()

    def close(self) -> None:
        self._runner.close()


@dataclass(slots=True)
class Wire:
    """The streams of a node: number open, bytes carried. The next `damaged_writes` writes get a wrong byte."""

    open_streams: int = 0
    carried_bytes: int = 0
    damaged_writes: int = 0

    def watched(self, handler: StreamHandler) -> StreamHandler:
        """Return the handler with its streams counted and damaged here."""

        async def handle(stream: Stream) -> None:
            self.open_streams += 1
            try:
                await handler(_WatchedStream(stream, self))
            finally:
                self.open_streams -= 1

        return handle

    def carry(self, data: bytes) -> bytes:
        """Return the bytes that arrive when these are sent."""
        self.carried_bytes += len(data)
        if not self.damaged_writes or not data:
            return data
        self.damaged_writes -= 1
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ DAMAGE]) + data[middle + 1 :]


class _WatchedStream:
    def __init__(self, stream: Stream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    @property
    def peer_id(self) -> str:
        return self._stream.peer_id

    async def read(self) -> bytes:
        data = await self._stream.read()
        self._wire.carried_bytes += len(data)
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(self._wire.carry(data))

    def close(self) -> None:
        self._stream.close()

    def note_flood(self) -> None:
        self._stream.note_flood()


@dataclass(slots=True)
class WatchedTransport:
    """A transport whose served streams, but not dialled ones, run over `wire`."""

    inner: Transport
    wire: Wire = field(default_factory=Wire)

    @property
    def peer_id(self) -> str:
        return self.inner.peer_id

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        return await self.inner.dial(peer_id, protocol)

    async def address_of(self, peer_id: str) -> str:
        return await self.inner.address_of(peer_id)

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        await self.inner.serve(protocol, self.wire.watched(handler))

    async def close(self) -> None:
        await self.inner.close()
