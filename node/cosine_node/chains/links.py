"""The streams of a head to the stages of one chain, and the frames in flight on them.

Theory of operation
-------------------
A head joins its stages from the last to the first, since each stage dials the next one. It then sends one ordered
stream of operations to the first stage, which passes them on; only the last stage answers passes. Every stage keeps
a stream to the head, for reports of passes, answers to probes (`checks`), and errors.

The links are lost as a whole: at the first end of a stream, error, or invalid answer, all frames in flight fail.
`suspects` are the stages of which one is at fault: if a stage got bad activations, it and the stage before, since
either the one sent them or the other lies.

Each stage reports to the head when it has forwarded a pass (`Passed`), and for how long it held it. The head
records the arrival by its clock, minus the distance of the stage. A stage can begin a pass once the stage before
has forwarded it and its own previous pass has ended; the time after that is its share (`PassTimes`). Shares thus
depend on the order of messages, not on the clocks of stages. A stage that reports late lengthens its own share. One
that reports early lengthens the share of the next stage; the part of a share that a stage does not claim to have
held is time
*between* it and the stage before: a longer link, or one of the two lies. A chain in which they are not neighbours
avoids it in either case.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Final, Self

from cosine_engine.base import Row, RowResult
from cosine_node.chains.search import StagePlace
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import ChainLost, feed_messages, results_of
from cosine_node.stages.served_chain import IDLE_S
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import SILENCE_S, Channel
from cosine_p2p.transport.patience import end_all
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, LocalProtocolError, PeerLost, RemoteProtocolError
from cosine_protocol.stage import (
    CHAIN_ID_BYTES,
    PROBES,
    STAGE,
    TIMES,
    Activations,
    BookOperation,
    FeedPass,
    Join,
    Joined,
    OpenSequence,
    PartTrace,
    Passed,
    Probe,
    Probed,
    Results,
)
from cosine_protocol.stream import CONSTRAINTS, SHAPING, Error

JOIN_S: Final = 3 * SILENCE_S
"""A stage that joins dials the next one and waits for its answer, each for at most `SILENCE_S`."""
ANSWER_S: Final = 60.0
"""Shortest wait for an answer; a dead stage shows within 4 s, by its heartbeats."""
SECRET_BYTES: Final = 32
PROBE_S: Final = 10.0
"""Limit of the wait for a probe's answer: far longer than a pass for which a probe waits."""
CAUSE_S: Final = 0.5
"""Time to wait for a message of a failed stage itself after its neighbour has reported it."""
REMEMBERED_PASSES: Final = 256
"""Bounds memory if nobody takes them."""
LATE_PASSES: Final = 4
"""A pass no longer waits for a report once this many later passes were answered."""
Traces = tuple[PartTrace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """The stages of a chain in order, and the size of their pools.

    `ways_s` are the expected one-way times from the head to the first stage, and from each to the next. Raises
    `LocalProtocolError` if the stages do not hold all layers in order.
    """

    places: tuple[StagePlace, ...]
    target_digest: bytes
    numerics: str
    vocab_tokens: int
    pool_tokens: int
    first_sequence: int = 0
    ways_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        parts = [place.layers for place in self.places]
        follow = all(one.precedes(other) for one, other in pairwise(parts))
        if not (parts and parts[0].is_first and parts[-1].is_last and follow):
            raise LocalProtocolError(f"{', '.join(map(str, parts))} do not hold all layers in order.")

    def join(self, number: int, *, chain: bytes, head: str) -> Join:
        """The `Join` message for a stage by its number."""
        place = self.places[number]
        following = self.places[number + 1] if number + 1 < len(self.places) else None
        return Join(
            chain=chain,
            target_digest=self.target_digest,
            numerics=self.numerics,
            first_layer=place.layers.first,
            end_layer=place.layers.end,
            layers=place.layers.layers,
            pool_tokens=self.pool_tokens,
            window_pool_tokens=None,
            window_tokens=None,
            first_sequence=self.first_sequence,
            source=self.places[number - 1].peer_id if number else head,
            target=None if following is None else following.peer_id,
            addresses=(),
        )


@dataclass(frozen=True, slots=True)
class EndedPass:
    """An answered pass: its tokens, the seconds at each stage, and the unexpected ones before each stage."""

    tokens: int
    at_stage_s: tuple[float, ...]
    between_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StuckPass:
    """The oldest pass under way: its tokens, the time of its last progress, and the stages that may hold it up."""

    tokens: int
    since_s: float
    suspects: tuple[int, ...]


@dataclass(slots=True)
class _Pass:
    """A pass that has not ended, and the reports on it by stage."""

    number: int
    tokens: int
    sent_s: float
    passed_s: list[float | None]
    held_s: list[float]
    answered_s: float | None = None


class PassTimes:
    """The passes of one chain. Times are of the head's clock."""

    def __init__(self, *, reports: Sequence[bool], ways_s: Sequence[float]) -> None:
        """`reports` is true for stages that report passes; `ways_s` are the one-way times to each stage."""
        self._reports = tuple(reports)
        self._ways_s = tuple(ways_s)
        self._passes: deque[_Pass] = deque()
        self._ended: deque[EndedPass] = deque(maxlen=REMEMBERED_PASSES)
        self._free_s = [-math.inf] * len(self._reports)

    def note_sent(self, number: int, *, tokens: int, now_s: float) -> None:
        """Record that a pass was sent, after all before it."""
        count = len(self._reports)
        self._passes.append(_Pass(number, tokens, now_s, [None] * count, [0.0] * count))

    def note_passed(self, stage: int, number: int, *, held_s: float, passed_s: float) -> None:
        """Record a stage's first report on a pass under way."""
        known = self._find(number)
        if known is not None and known.passed_s[stage] is None:
            known.passed_s[stage], known.held_s[stage] = passed_s, held_s
            self._end_known()

    def note_answered(self, number: int, *, answered_s: float) -> None:
        """Record that the last stage has answered a pass."""
        known = self._find(number)
        if known is not None:
            known.answered_s = answered_s
            self._end_known()

    def _find(self, number: int) -> _Pass | None:
        return next((one for one in self._passes if one.number == number), None)

    def take_ended(self) -> list[EndedPass]:
        """The passes that have ended since the last call, in their order."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _end_known(self) -> None:
        while self._passes and self._is_ended(self._passes[0]):
            self._ended.append(self._end(self._passes.popleft()))

    def _is_ended(self, one: _Pass) -> bool:
        if one.answered_s is None:
            return False
        is_awaited = any(
            reports and at_s is None for at_s, reports in zip(one.passed_s, self._reports, strict=True)
        )
        return not is_awaited or sum(other.answered_s is not None for other in self._passes) > LATE_PASSES

    def _end(self, one: _Pass) -> EndedPass:
        assert one.answered_s is not None
        at_s = one.answered_s
        passed_s = [at_s]
        # A stage without a report counts as having passed it on when the next one did.
        for told_s in reversed(one.passed_s[:-1]):
            at_s = at_s if told_s is None else told_s
            passed_s.append(at_s)
        at_stage_s, between_s = [], []
        before_s = one.sent_s
        for stage, at_s in enumerate(reversed(passed_s)):
            share_s = max(0.0, at_s - max(before_s + self._ways_s[stage], self._free_s[stage]))
            is_believed = self._reports[stage] and stage > 0
            at_stage_s.append(min(share_s, one.held_s[stage]) if is_believed else share_s)
            between_s.append(share_s - at_stage_s[-1])
            self._free_s[stage] = max(self._free_s[stage], at_s)
            before_s = at_s
        return EndedPass(one.tokens, tuple(at_stage_s), tuple(between_s))

    def stuck(self) -> StuckPass | None:
        """The oldest unanswered pass, if there is one."""
        position = next((index for index, one in enumerate(self._passes) if one.answered_s is None), None)
        if position is None:
            return None
        one, last_stage = self._passes[position], len(self._reports) - 1
        told = [stage for stage, at_s in enumerate(one.passed_s) if at_s is not None]
        last = max(told, default=-1)
        at = min(last + 1, last_stage)
        # It is at one of the stages up to the next that reports.
        until = next((stage for stage in range(at, last_stage) if self._reports[stage]), last_stage)
        since_s = max(one.sent_s, self._free_s[at], one.passed_s[last] or -math.inf if told else -math.inf)
        if position:
            since_s = max(since_s, self._passes[position - 1].answered_s or -math.inf)
        return StuckPass(one.tokens, since_s, tuple(range(max(0, last), until + 1)))


@dataclass(frozen=True, slots=True)
class _Feed:
    """A pass in flight; the result of `answer` is None if the links are lost."""

    number: int
    rows: tuple[Row, ...]
    answer: asyncio.Future[Results | None]


@dataclass(frozen=True, slots=True)
class _AskedProbe:
    """A probe in flight to one stage; the result of `answer` is None if the links are lost."""

    parts: int
    answer: asyncio.Future[Traces | None]


class StageLinks:
    """The streams to the stages of one chain; `opened` sets them up.

    `submit` and `feed` may be called in any thread, `results` in any but the event loop's, one of them at a time;
    use `answer` on the loop. `lost` is set on the event loop.
    """

    def __init__(self, plan: ChainPlan, channels: Mapping[int, Channel], answer_s: Callable[[int], float]) -> None:
        """`channels` are the streams to the stages by number."""
        self.plan = plan
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._channels = channels
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._sent = 0
        self._sent_at_s = -math.inf
        self._unread: deque[_Feed] = deque()
        self._unanswered: deque[_Feed] = deque()
        self._probes: dict[int, deque[_AskedProbe]] = {number: deque() for number in channels}
        self._reason: str | None = None
        self.lost = asyncio.Event()
        self.suspects: tuple[str, ...] = ()
        """The stages of which one is at fault; a single one has failed."""
        reports = [TIMES in channels[number].features for number in range(len(plan.places))]
        self.times = PassTimes(reports=reports, ways_s=plan.ways_s or (0.0,) * len(reports))

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        transport: Transport,
        plan: ChainPlan,
        *,
        answer_s: Callable[[int], float] = lambda tokens: ANSWER_S,
        join_s: float = JOIN_S,
    ) -> AsyncIterator[Self]:
        """Join the stages from the last to the first; the chain ends with the context. Raises `ChainLost`.

        Each stage has `join_s` to join; `answer_s` returns the seconds to wait for a pass over a number of tokens.
        """
        chain = secrets.token_bytes(CHAIN_ID_BYTES)
        async with AsyncExitStack() as stack:
            channels: dict[int, Channel] = {}
            for number in reversed(range(len(plan.places))):
                join = plan.join(number, chain=chain, head=transport.peer_id)
                channels[number] = await _joined(transport, plan.places[number], join, join_s, stack)
            links = cls(plan, channels, answer_s)
            listening = [asyncio.ensure_future(links._listen(*each)) for each in channels.items()]
            try:
                yield links
            finally:
                links.leave("The chain was given up.")
                await end_all(listening)

    @property
    def applies_constraints(self) -> bool:
        """True if the last stage applies the constraints of requests."""
        return CONSTRAINTS in self._channels[len(self.plan.places) - 1].features

    @property
    def stages(self) -> tuple[str, ...]:
        """The peer ids of the stages, in the order of their layers."""
        return tuple(place.peer_id for place in self.plan.places)

    @property
    def fed(self) -> int:
        """The number of the next feed."""
        return self._sent

    @property
    def rtts_s(self) -> dict[str, float]:
        """The measured round-trip times to the stages, by peer id."""
        measured = {channel.peer_id: channel.rtt_s for channel in self._channels.values()}
        return {peer_id: rtt_s for peer_id, rtt_s in measured.items() if rtt_s is not None}

    def submit(self, operation: BookOperation) -> None:
        """Send an operation without waiting; does nothing once the links are lost."""
        if isinstance(operation, OpenSequence) and operation.scope is not None:
            # Scopes name clients, which stages must not learn. With a key that a stage knows it could try peer ids;
            # with one key for all chains it could recognise a client.
            scope = blake2b(operation.scope.encode(), digest_size=16, key=self._secret).hexdigest()
            operation = replace(operation, scope=scope)
        if self._reason is None:
            self._loop.call_soon_threadsafe(self._post, operation)

    def feed(self, rows: Sequence[Row]) -> None:
        """Send a pass without waiting; does nothing once the links are lost."""
        if self._reason is not None:
            return
        feed = _Feed(self._sent, tuple(rows), self._loop.create_future())
        self._unread.append(feed)
        self._unanswered.append(feed)
        self._sent += 1
        for message in feed_messages(feed.number, feed.rows):
            self._loop.call_soon_threadsafe(self._post, message)

    def results(self) -> Sequence[RowResult]:
        """Wait for the results of the oldest unread pass, one a row. Raises `ChainLost`."""
        return asyncio.run_coroutine_threadsafe(self.answer(), self._loop).result()

    async def answer(self) -> Sequence[RowResult]:
        """Return the results of the oldest unread pass, one a row. Raises `ChainLost`."""
        feed = self._unread.popleft() if self._unread else None
        answer = None
        if feed is not None and self._reason is None:
            wait_s = self._answer_s(count_tokens(feed.rows))
            try:
                async with asyncio.timeout(wait_s):
                    answer = await asyncio.shield(feed.answer)
            except TimeoutError:
                self.leave(f"No stage has answered a pass for {wait_s:g} s.")
        if feed is None or answer is None:
            raise ChainLost(self._reason or "The chain was lost.")
        try:
            if answer.number != feed.number:
                raise RemoteProtocolError(f"an answer to pass {answer.number}, not {feed.number}")
            return results_of(answer, feed.rows, vocab_tokens=self.plan.vocab_tokens)
        except RemoteProtocolError as error:
            sentence = f"{self.plan.places[-1]}: {error}."
            self.leave(sentence, self.plan.places[-1].peer_id)
            raise ChainLost(sentence) from None

    async def probe(self, probe: Probe) -> list[Traces | None]:
        """Probe each stage about answered passes; None for a stage without probes. Raises `ChainLost`."""
        asked: list[asyncio.Future[Traces | None] | None] = []
        for number, place in enumerate(self.plan.places):
            channel = self._channels[number]
            if PROBES not in channel.features or len(self.plan.places) == 1:
                asked.append(None)
                continue
            answer: asyncio.Future[Traces | None] = self._loop.create_future()
            asked.append(answer)
            self._probes[number].append(_AskedProbe(len(probe.parts), answer))
            if not channel.post(probe):
                self.leave(f"{place}: it reads too slowly.", place.peer_id)
        found = []
        for place, each in zip(self.plan.places, asked, strict=True):
            try:
                async with asyncio.timeout(PROBE_S):
                    traces = None if each is None else await asyncio.shield(each)
            except TimeoutError:
                self.leave(f"{place}: it does not report what it has computed.", place.peer_id)
                traces = None
            if self._reason is not None:
                raise ChainLost(self._reason, peer_id=self.suspects[0] if len(self.suspects) == 1 else None)
            found.append(traces)
        return found

    def _post(self, message: BookOperation | FeedPass | Activations) -> None:
        first = self.plan.places[0]
        try:
            if not self._channels[0].post(message):
                self.leave(f"{first}: it reads too slowly.", first.peer_id)
                return
        except LocalProtocolError as error:
            self.leave(f"An operation could not be sent: {error}.")
            return
        if isinstance(message, FeedPass):
            tokens = sum(len(row.tokens) for row in message.rows)
            self._sent_at_s = self._loop.time()
            self.times.note_sent(message.number, tokens=tokens, now_s=self._sent_at_s)

    def leave(self, reason: str, *suspects: str) -> None:
        """Lose the links, if they are not lost already, by the fault of one of `suspects`; on the event loop."""
        if self._reason is not None:
            return
        self._reason = reason
        self.suspects = suspects
        for feed in self._unanswered:
            if not feed.answer.done():
                feed.answer.set_result(None)
        for asked in (each for of_stage in self._probes.values() for each in of_stage):
            if not asked.answer.done():
                asked.answer.set_result(None)
        self._unanswered.clear()
        self.lost.set()

    @property
    def _is_idle(self) -> bool:
        """True if a stage may consider the chain idle and take its room back."""
        # Half, since the last message took time to arrive.
        return not self._unanswered and self._loop.time() - self._sent_at_s > IDLE_S / 2

    async def _listen(self, number: int, channel: Channel) -> None:
        """Handle the messages of one stage until the links are lost with it."""
        place = self.plan.places[number]
        try:
            while not isinstance(said := await channel.receive(), Error):
                # The time, by the head's clock, at which the stage has sent the message.
                self._take(number, said, self._loop.time() - (channel.rtt_s or 0.0) / 2)
        except PeerLost as lost:
            self.leave(f"{place}: {lost.reason}.", place.peer_id)
        except RemoteProtocolError as error:
            self.leave(f"{place}: {error}.", place.peer_id)
        else:
            await self._fail(number, said)

    async def _fail(self, number: int, error: Error) -> None:
        """Lose the links by an error of one stage."""
        place = self.plan.places[number]
        reason = f"{place}: {error.message.rstrip('.')}."
        if error.code == ErrorCode.NEIGHBOUR_LOST:
            # The error of the failed stage itself names the layers.
            await asyncio.sleep(CAUSE_S)
        if error.code == ErrorCode.BAD_ACTIVATIONS and number:
            # Either the stage before sent them, or this one lies.
            self.leave(reason, *self.stages[number - 1 : number + 1])
            return
        # A stage may take the room of an idle chain for another head.
        is_due = error.code == ErrorCode.OVERLOADED and self._is_idle
        self.leave(reason, *(() if is_due else (place.peer_id,)))

    def _take(self, number: int, said: Message, sent_s: float) -> None:
        """Handle a message that a stage sent at `sent_s`. Raises `RemoteProtocolError` if it was not expected."""
        match said:
            case Results() if number == len(self.plan.places) - 1 and self._unanswered:
                feed = self._unanswered.popleft()
                self.times.note_answered(feed.number, answered_s=sent_s)
                if not feed.answer.done():
                    feed.answer.set_result(said)
            case Passed(number=passed, held_us=held_us):
                self.times.note_passed(number, passed, held_s=held_us / 1e6, passed_s=sent_s)
            case Probed(parts) if self._probes[number] and self._probes[number][0].parts == len(parts):
                probe = self._probes[number].popleft()
                if not probe.answer.done():
                    probe.answer.set_result(parts)
            case _:
                raise RemoteProtocolError(f"unexpected {type(said).__name__}")


async def _joined(
    transport: Transport, place: StagePlace, join: Join, join_s: float, stack: AsyncExitStack
) -> Channel:
    """Return the stream to a stage that has joined. Raises `ChainLost`."""
    try:
        async with asyncio.timeout(join_s):
            stream = await transport.dial(place.peer_id, STAGE)
            channel = await stack.enter_async_context(Channel(stream, STAGE))
            channel.post(join)
            answer = await channel.receive()
    except TimeoutError:
        raise ChainLost(f"{place}: it did not join within {join_s:g} s.", peer_id=place.peer_id) from None
    except (PeerLost, RemoteProtocolError) as error:
        raise ChainLost(f"{place}: {error}.", peer_id=place.peer_id) from None
    if isinstance(answer, Error):
        retry_after_s = answer.retry_after_s if answer.code == ErrorCode.OVERLOADED else None
        said = f"{place}: {answer.message.rstrip('.')}."
        raise ChainLost(said, peer_id=place.peer_id, retry_after_s=retry_after_s)
    if not isinstance(answer, Joined):
        raise ChainLost(f"{place}: unexpected {type(answer).__name__}.", peer_id=place.peer_id)
    # It would ignore unknown parts of a request and choose other tokens.
    if place.layers.is_last and SHAPING not in channel.features:
        raise ChainLost(f"{place}: its version knows no {SHAPING}.", peer_id=place.peer_id)
    return channel
