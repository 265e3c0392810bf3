"""Messages over one stream: hello, framing, heartbeats both ways, a deadline on silence, an orderly end."""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.call_budget import CallBudget
from cosine_protocol import messages as m
from cosine_protocol.__version__ import __version__
from cosine_protocol.codec import FrameDecoder, decode, encode, encode_frame
from cosine_protocol.errors import ErrorCode, PeerLost, RemoteProtocolError
from cosine_protocol.protocols import (
    CONSTRAINTS,
    LEARNING,
    LOGPROBS,
    MANDATES,
    PROBES,
    SHAPING,
    TIMES,
    VERSION,
    WINDOWS,
    check_allowed,
    common_features,
)

HEARTBEAT_S: Final = 1.0  # docs/protocol.md, section 3.
SILENCE_S: Final = 4.0  # Three heartbeats may be lost or late; docs/protocol.md, section 3.
MAX_WAITING_BYTES: Final = 4 << 20  # Bounds memory for a peer that reads too slowly: four of the largest frames.
MAX_SENT_AHEAD_BYTES: Final = 1 << 20  # What `send` lets wait, the largest frame; heartbeats have room.
MAX_SENTENCE: Final = 250  # Characters: at most 1,000 bytes in UTF-8, within `MAX_TEXT_BYTES`.
AGENT: Final = f"cosine-p2p/{__version__}"  # as others read it in a hello or record
FEATURES: Final = (MANDATES, WINDOWS, SHAPING, CONSTRAINTS, LOGPROBS, PROBES, TIMES)  # What every end names.
READ_RATE: Final = 4000.0
"""Units a second that are read of a peer: one a message and one a KiB of it. One took 12 to 67 microseconds, so a
flood takes a quarter of a core. A gateway with 16 requests of three drafters each is sent 440 a second where a pass
takes 60 ms and a draft 6 ms, and 2,270 at 10 and 1 ms."""
READ_BURST: Final = 2000.0  # Half a second's units, 0.13 s of work at most, and more than the largest frame.
READ_PLACES: Final = 16  # The requests of that measurement; with more, more is read of a peer.
FLOOD_S: Final = 30.0
"""At the limit for so long, a peer has sent 117 MiB or 120,000 messages too many; the longest prompts of 16
requests, 8 MiB, take two seconds."""
FLOODED: Final = "it sends more than is read of a peer, for too long"
PING_NUMBERS: Final = range(1 << 16, 1 << 32)  # Too many to guess an open one, of one length on the wire.


@dataclass(slots=True)
class StepCounts:
    """What a serving peer reports with each heartbeat, to tell alive from stalled."""

    steps: int = 0
    prefill_tokens: int = 0


def read_budget(*, factor: float = 1.0, flood_s: float = math.inf) -> CallBudget:
    """A budget of what is read of each peer, for all streams that share it."""
    return CallBudget(peer_rate=factor * READ_RATE, peer_burst=factor * READ_BURST, flood_s=flood_s)


def serving_budget(*, places: int = READ_PLACES) -> CallBudget:
    """The same for a service with so many places; it also ends the streams of flooders."""
    return read_budget(factor=max(1.0, places / READ_PLACES), flood_s=FLOOD_S)


def draw_ping_number() -> int:
    """A number that no peer can foresee: it would answer early and seem nearer."""
    return PING_NUMBERS.start + secrets.randbelow(len(PING_NUMBERS))


class Channel:
    """One stream as messages. Use `async with`; exactly one task may call `receive`.

    A peer that sends more than its part of `budget` is read later, and lost where the budget silences it
    (`is_flooded`). `receive` answers pings and raises `PeerLost` when the stream ends or is silent for `SILENCE_S`,
    and `RemoteProtocolError` when the peer breaks the protocol.
    """

    def __init__(
        self,
        stream: Stream,
        protocol: str,
        *,
        progress: StepCounts | None = None,
        budget: CallBudget | None = None,
        learns: bool = False,
        lacks: Collection[str] = (),
    ) -> None:
        """`learns`: named in the hello. `lacks`: features that are not."""
        self.peer_id = stream.peer_id
        self.protocol = protocol
        self.features: frozenset[str] = frozenset()
        self.rtt_s: float | None = None
        self.progress = progress or StepCounts()
        self.remote_progress = StepCounts()
        self.bytes_sent = 0
        self.bytes_received = 0
        self.requests = 0
        self.is_flooded = False
        self._stream = stream
        self._budget = budget or read_budget()
        self._decoder = FrameDecoder()
        self._received: deque[bytes] = deque()
        self._outgoing: deque[bytes] = deque()
        self.waiting_bytes = 0
        self._has_outgoing = asyncio.Event()
        self._has_room = asyncio.Event()
        self._learns = learns
        self._lacks = lacks
        # Whose answer may still come: twice what fits into the silence allowed.
        self._pings = Remembered[int, float](8)
        self._tasks: list[asyncio.Task[None]] = []
        self.greeted = asyncio.Event()
        self._is_ending = False

    async def __aenter__(self) -> "Channel":
        named = (*FEATURES, LEARNING) if self._learns else FEATURES
        self.post(m.Hello(VERSION, tuple(name for name in named if name not in self._lacks), AGENT))
        # Before any request, so that the distance is known once the first is answered.
        self._ping()
        self._tasks = [asyncio.ensure_future(self._write_all()), asyncio.ensure_future(self._beat())]
        return self

    async def __aexit__(self, *_: object) -> None:
        # What is queued gets a moment to leave, unless the stream is broken.
        self._is_ending = True
        self._has_outgoing.set()
        await asyncio.wait(self._tasks[:1], timeout=HEARTBEAT_S)
        await end_all(self._tasks)
        self._stream.close()

    def post(self, message: m.Message) -> bool:
        """Queue a message without waiting; False if the peer reads too slowly."""
        frame = encode_frame(encode(message))
        if self.waiting_bytes + len(frame) > MAX_WAITING_BYTES:
            return False
        self._outgoing.append(frame)
        self.waiting_bytes += len(frame)
        self._has_outgoing.set()
        return True

    async def send(self, message: m.Message) -> None:
        """Queue a message once the peer has read enough of those before. Raises `PeerLost`."""
        while self.waiting_bytes > MAX_SENT_AHEAD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        if self._tasks[0].done() or not self.post(message):
            raise PeerLost(self.peer_id, "the stream is broken")

    async def receive(self) -> m.Message:
        """The next message that is not the channel's own upkeep."""
        while True:
            message = await self._next_message()
            if not self.greeted.is_set():
                if isinstance(message, m.Error) and message.number == 0:
                    return message
                if not isinstance(message, m.Hello):
                    raise RemoteProtocolError(f"{self.peer_id} did not start with a hello")
                self.features = common_features((*FEATURES, LEARNING), message)
                self.greeted.set()
            elif isinstance(message, m.Ping):
                self.remote_progress = StepCounts(message.steps, message.prefill_tokens)
                self.post(m.Pong(message.number))
            elif isinstance(message, m.Pong):
                sent_at_s = self._pings.pop(message.number)
                if sent_at_s is not None:
                    sample_s = asyncio.get_running_loop().time() - sent_at_s
                    # The newest sample counts for three tenths of the average.
                    known_s = sample_s if self.rtt_s is None else self.rtt_s
                    self.rtt_s = known_s + 0.3 * (sample_s - known_s)
            else:
                return message

    async def _next_message(self) -> m.Message:
        while not self._received:
            try:
                async with asyncio.timeout(SILENCE_S):
                    data = await self._stream.read()
            except TimeoutError:
                raise PeerLost(self.peer_id, f"nothing was heard for {SILENCE_S:g} s") from None
            if not data:
                raise PeerLost(self.peer_id, "the stream ended")
            self.bytes_received += len(data)
            self._received.extend(self._decoder.feed(data))
        frame = self._received.popleft()
        now_s = asyncio.get_running_loop().time()
        was_silenced = self._budget.is_silenced(self.peer_id, now_s=now_s)
        units = (1 + len(frame) / 1024) * min(1.0, READ_PLACES / max(1, self.requests))
        wait_s = self._budget.owe(self.peer_id, units, now_s=now_s)
        if self._budget.is_silenced(self.peer_id, now_s=now_s):
            # Its other streams, and those that it opens meanwhile, are no further flood.
            if not was_silenced:
                self._stream.note_flood()
            self.is_flooded = True
            raise PeerLost(self.peer_id, FLOODED)
        if wait_s:
            await asyncio.sleep(wait_s)
        message = decode(frame)
        check_allowed(self.protocol, message)
        return message

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._ping()

    def _ping(self) -> None:
        number = draw_ping_number()
        self._pings.note(number, asyncio.get_running_loop().time())
        self.post(m.Ping(number, self.progress.steps, self.progress.prefill_tokens))

    async def _write_all(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                while self._outgoing:
                    data = b"".join(self._outgoing)
                    self._outgoing.clear()
                    await self._stream.write(data)
                    self.waiting_bytes -= len(data)
                    self.bytes_sent += len(data)
                    self._has_room.set()
                if self._is_ending:
                    return
        except PeerLost:
            return
        finally:
            # Nobody reads any more: who waits is told.
            self.waiting_bytes = 0
            self._has_room.set()


async def serve_channel(
    stream: Stream,
    protocol: str,
    handle: Callable[[Channel, m.Message], None],
    *,
    on_end: Callable[[Channel, str], None] | None = None,
    progress: StepCounts | None = None,
    budget: CallBudget | None = None,
    learns: bool = False,
) -> None:
    """Serve a stream: messages to `handle`, its end to `on_end`. Who breaks the protocol gets an `Error`."""
    async with Channel(stream, protocol, progress=progress, budget=budget, learns=learns) as channel:
        reason = "serving it was given up"
        try:
            while True:
                handle(channel, await channel.receive())
        except PeerLost as lost:
            reason = lost.reason
        except RemoteProtocolError as error:
            reason = str(error)
            channel.post(m.Error(0, ErrorCode.MALFORMED, reason[:MAX_SENTENCE], None))
        finally:
            if on_end is not None:
                on_end(channel, reason)
