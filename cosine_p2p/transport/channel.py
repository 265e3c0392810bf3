"""Messages over one stream: hello, framing, mutual heartbeats, a deadline on silence, an orderly end."""

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
from cosine_protocol.__version__ import __version__
from cosine_protocol.codec import FrameDecoder, Message, check_allowed, decode, encode, encode_frame
from cosine_protocol.draft import MANDATES, WINDOWS
from cosine_protocol.errors import ErrorCode, PeerLost, RemoteProtocolError
from cosine_protocol.stage import PROBES, TIMES
from cosine_protocol.stream import (
    CONSTRAINTS,
    LOGPROBS,
    SHAPING,
    VERSION,
    Error,
    Hello,
    Ping,
    Pong,
    common_features,
)

HEARTBEAT_S: Final = 1.0  # docs/protocol.md, section 3.
SILENCE_S: Final = 4.0  # Three heartbeats may be lost or late; docs/protocol.md, section 3.
MAX_WAITING_BYTES: Final = 4 << 20  # Bounds memory for a peer that reads too slowly: four of the largest frames.
MAX_SENT_AHEAD_BYTES: Final = 1 << 20  # The bytes after which `send` waits: the largest frame.
MAX_SENTENCE: Final = 250  # Characters: at most 1,000 bytes in UTF-8, within `MAX_TEXT_BYTES`.
AGENT: Final = f"cosine-p2p/{__version__}"  # Sent in hellos and records.
FEATURES: Final = (MANDATES, WINDOWS, SHAPING, CONSTRAINTS, LOGPROBS, PROBES, TIMES)  # Named by every end.
READ_RATE: Final = 4000.0
"""Units a second that are read from a peer: one for each message and for each KiB of it. A unit took 12 to 67
microseconds, so a flood takes a quarter of a core. A gateway with 16 requests of three drafters each receives 440 a
second if a pass takes 60 ms and a draft 6 ms, and 2,270 at 10 and 1 ms."""
READ_BURST: Final = 2000.0  # Half a second of units, at most 0.13 s of work, and more than the largest frame.
READ_PLACES: Final = 16  # The requests of that measurement; with more requests the budget grows.
FLOOD_S: Final = 30.0
"""After this long at the limit a peer has sent 117 MiB or 120,000 messages too many; the longest prompts of 16
requests, 8 MiB, take two seconds."""
FLOODED: Final = "it sends more than is read of a peer, for too long"
PING_NUMBERS: Final = range(1 << 16, 1 << 32)  # Too many to guess an open one; all of one length on the wire.


@dataclass(slots=True)
class StepCounts:
    """The progress that a serving peer reports with each heartbeat, to distinguish alive from stalled."""

    steps: int = 0
    prefill_tokens: int = 0


def read_budget(*, factor: float = 1.0, flood_s: float = math.inf) -> CallBudget:
    """A budget of what is read from each peer, for all streams that share it."""
    return CallBudget(peer_rate=factor * READ_RATE, peer_burst=factor * READ_BURST, flood_s=flood_s)


def serving_budget(*, places: int = READ_PLACES) -> CallBudget:
    """The read budget of a service with `places` for requests, which also ends the streams of flooding peers."""
    return read_budget(factor=max(1.0, places / READ_PLACES), flood_s=FLOOD_S)


def draw_ping_number() -> int:
    """A number that no peer can predict: it could answer early and seem nearer."""
    return PING_NUMBERS.start + secrets.randbelow(len(PING_NUMBERS))


class Channel:
    """A stream of messages. Use `async with`; exactly one task may call `receive`.

    A peer that exceeds its `budget` is read more slowly, and lost if the budget silences it (`is_flooded`).
    `receive` answers pings; it raises `PeerLost` when the stream ends or is silent for `SILENCE_S`, and
    `RemoteProtocolError` when the peer breaks the protocol.
    """

    def __init__(
        self,
        stream: Stream,
        protocol: str,
        *,
        progress: StepCounts | None = None,
        budget: CallBudget | None = None,
        lacks: Collection[str] = (),
    ) -> None:
        """`lacks` removes features from our hello."""
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
        self._lacks = lacks
        # The pings that may still be answered: twice as many as fit into `SILENCE_S`.
        self._pings = Remembered[int, float](8)
        self._tasks: list[asyncio.Task[None]] = []
        self.greeted = asyncio.Event()
        self._is_ending = False

    async def __aenter__(self) -> "Channel":
        self.post(Hello(VERSION, tuple(name for name in FEATURES if name not in self._lacks), AGENT))
        # Before any request, so that the round-trip time is known with the first answer.
        self._ping()
        self._tasks = [asyncio.ensure_future(self._write_all()), asyncio.ensure_future(self._beat())]
        return self

    async def __aexit__(self, *_: object) -> None:
        # Queued messages have a moment to be sent, unless the stream is broken.
        self._is_ending = True
        self._has_outgoing.set()
        await asyncio.wait(self._tasks[:1], timeout=HEARTBEAT_S)
        await end_all(self._tasks)
        self._stream.close()

    def post(self, message: Message) -> bool:
        """Queue a message without waiting; False if the peer reads too slowly."""
        frame = encode_frame(encode(message))
        if self.waiting_bytes + len(frame) > MAX_WAITING_BYTES:
            return False
        self._outgoing.append(frame)
        self.waiting_bytes += len(frame)
        self._has_outgoing.set()
        return True

    async def send(self, message: Message) -> None:
        """Queue a message once the peer has read enough earlier ones. Raises `PeerLost`."""
        while self.waiting_bytes > MAX_SENT_AHEAD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        if self._tasks[0].done() or not self.post(message):
            raise PeerLost(self.peer_id, "the stream is broken")

    async def receive(self) -> Message:
        """The next message that is not handled by the channel itself."""
        while True:
            message = await self._next_message()
            if not self.greeted.is_set():
                if isinstance(message, Error) and message.number == 0:
                    return message
                if not isinstance(message, Hello):
                    raise RemoteProtocolError(f"{self.peer_id} did not start with a hello")
                self.features = common_features(FEATURES, message)
                self.greeted.set()
            elif isinstance(message, Ping):
                self.remote_progress = StepCounts(message.steps, message.prefill_tokens)
                self.post(Pong(message.number))
            elif isinstance(message, Pong):
                sent_at_s = self._pings.pop(message.number)
                if sent_at_s is not None:
                    sample_s = asyncio.get_running_loop().time() - sent_at_s
                    # An exponential moving average with the weight 0.3.
                    known_s = sample_s if self.rtt_s is None else self.rtt_s
                    self.rtt_s = known_s + 0.3 * (sample_s - known_s)
            else:
                return message

    async def _next_message(self) -> Message:
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
            # Its other streams, and those that it opens meanwhile, do not count as another flood.
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
        self.post(Ping(number, self.progress.steps, self.progress.prefill_tokens))

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
            # The stream has ended: wake the tasks in `send`.
            self.waiting_bytes = 0
            self._has_room.set()


async def serve_channel(
    stream: Stream,
    protocol: str,
    handle: Callable[[Channel, Message], None],
    *,
    on_end: Callable[[Channel, str], None] | None = None,
    progress: StepCounts | None = None,
    budget: CallBudget | None = None,
) -> None:
    """Pass a stream's messages to `handle` and its end to `on_end`. A breach of the protocol gets an `Error`."""
    async with Channel(stream, protocol, progress=progress, budget=budget) as channel:
        reason = "the service was cancelled"
        try:
            while True:
                handle(channel, await channel.receive())
        except PeerLost as lost:
            reason = lost.reason
        except RemoteProtocolError as error:
            reason = str(error)
            channel.post(Error(0, ErrorCode.MALFORMED, reason[:MAX_SENTENCE], None))
        finally:
            if on_end is not None:
                on_end(channel, reason)
