"""A chain of stages on other machines, as their head sees it."""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from cosine_engine.base import Row, RowResult
from cosine_node.chains.pass_times import PassTimes
from cosine_node.chains.search import StagePlace
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.feeds import feed_messages, results_of
from cosine_node.stages.idle_chains import IDLE_S
from cosine_node.stages.operations import ChainLost, FeedRows, Operation
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import SILENCE_S, Channel
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, LocalProtocolError, PeerLost, RemoteProtocolError
from cosine_protocol.stage import (
    CHAIN_ID_BYTES,
    PROBES,
    STAGE,
    TIMES,
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
"""Least time for which an answer is awaited; a dead stage shows within 4 s, by its heartbeats."""
SECRET_BYTES: Final = 32
PROBE_S: Final = 10.0
"""Far longer than a pass for which a probe waits."""
CAUSE_S: Final = 0.5
"""Time to wait for a message of a failed stage itself after its neighbour has reported it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """A chain to be set up: places that hold all layers in order, and the size of their pools.

    `ways_s` are the expected one-way times from the head to the first stage, and from each to the next. Raises
    `LocalProtocolError` if the places do not hold all layers in order.
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
            addresses=() if following is None else following.addresses,
        )


@dataclass(frozen=True, slots=True)
class _Feed:
    """A pass that was sent; the result of `answer` is None if the chain is lost."""

    number: int
    rows: tuple[Row, ...]
    answer: asyncio.Future[Results | None]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A probe that was sent to one stage; the result of `told` is None if the chain is lost."""

    parts: int
    told: asyncio.Future[tuple[PartTrace, ...] | None]


class RemoteChain:
    """Implements `cosine_node.stages.operations.Chain` over streams.

    `submit` may be called in any thread, `results` in any but the event loop's, one of them at a time; use `answer`
    on the loop. `lost` is set on the event loop; `failed_peer` is the stage at fault, or one of
    `suspects` is.
    """

    def __init__(
        self,
        plan: ChainPlan,
        channels: Mapping[int, Channel],
        *,
        secret: bytes,
        answer_s: Callable[[int], float] = lambda tokens: ANSWER_S,
    ) -> None:
        """Use `open_chain`. `channels` are the streams to the stages by number; no stage knows `secret`."""
        self._plan = plan
        self._secret = secret
        self._channels = channels
        self._first = channels[0]
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._sent = 0
        self._sent_at_s = -math.inf
        self._unasked: deque[_Feed] = deque()
        self._unanswered: deque[_Feed] = deque()
        self._probes: dict[int, deque[_Probe]] = {number: deque() for number in channels}
        self._reason: str | None = None
        self.lost = asyncio.Event()
        self.failed_peer: str | None = None
        self.suspects: tuple[str, ...] = ()
        reports = [TIMES in channels[number].features for number in range(len(plan.places))]
        self.note_came: Callable[[int, int, float], object] = lambda stage, feed, seconds: None
        """Called with a stage, a feed and the seconds that its activations took to arrive."""
        self.times = PassTimes(reports=reports, ways_s=plan.ways_s or (0.0,) * len(reports))

    @property
    def applies_constraints(self) -> bool:
        """True if the last stage applies the constraints of requests."""
        return CONSTRAINTS in self._channels[len(self._plan.places) - 1].features

    @property
    def stages(self) -> tuple[str, ...]:
        """The peer ids of the stages, in the order of their layers."""
        return tuple(place.peer_id for place in self._plan.places)

    @property
    def places(self) -> tuple[StagePlace, ...]:
        """The stages and their layers, in order."""
        return self._plan.places

    @property
    def numerics(self) -> str:
        return self._plan.numerics

    @property
    def fed(self) -> int:
        """The number of the next feed."""
        return self._sent

    @property
    def rtts_s(self) -> dict[str, float]:
        """The measured round-trip times to the stages, by peer id."""
        measured = {channel.peer_id: channel.rtt_s for channel in self._channels.values()}
        return {peer_id: rtt_s for peer_id, rtt_s in measured.items() if rtt_s is not None}

    def submit(self, operation: Operation) -> None:
        if self._reason is not None:
            return
        if isinstance(operation, FeedRows):
            messages: Sequence[Message] = feed_messages(self._sent, operation.rows)
            feed = _Feed(self._sent, operation.rows, self._loop.create_future())
            self._unasked.append(feed)
            self._unanswered.append(feed)
            self._sent += 1
        elif isinstance(operation, OpenSequence) and operation.scope is not None:
            # Scopes name clients, which stages must not learn. With a key that a stage knows it could try peer ids;
            # with one key for all chains it could recognise a client.
            scope = blake2b(operation.scope.encode(), digest_size=16, key=self._secret).hexdigest()
            messages = [replace(operation, scope=scope)]
        else:
            messages = [operation]
        self._loop.call_soon_threadsafe(self._post, messages)

    def results(self) -> Sequence[RowResult]:
        return asyncio.run_coroutine_threadsafe(self.answer(), self._loop).result()

    async def answer(self) -> Sequence[RowResult]:
        """Return the results of the oldest unread feed. Raises `ChainLost`."""
        feed = self._unasked.popleft() if self._unasked else None
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
            return results_of(answer, feed.rows, vocab_tokens=self._plan.vocab_tokens)
        except RemoteProtocolError as error:
            sentence = f"{self._plan.places[-1]}: {error}."
            self.leave(sentence, peer_id=self._plan.places[-1].peer_id)
            raise ChainLost(sentence) from None

    async def probe(self, probe: Probe) -> list[tuple[PartTrace, ...] | None]:
        """Probe each stage about answered feeds; None for a stage without probes. Raises `ChainLost`."""
        asked: list[asyncio.Future[tuple[PartTrace, ...] | None] | None] = []
        for number, place in enumerate(self._plan.places):
            channel = self._channels[number]
            if PROBES not in channel.features or len(self._plan.places) == 1:
                asked.append(None)
                continue
            told: asyncio.Future[tuple[PartTrace, ...] | None] = self._loop.create_future()
            asked.append(told)
            self._probes[number].append(_Probe(len(probe.parts), told))
            if not channel.post(probe):
                self.leave(f"{place}: it reads too slowly.", peer_id=place.peer_id)
        found = []
        for number, each in enumerate(asked):
            try:
                async with asyncio.timeout(PROBE_S):
                    traces = None if each is None else await asyncio.shield(each)
            except TimeoutError:
                place = self._plan.places[number]
                self.leave(f"{place}: it does not report what it has computed.", peer_id=place.peer_id)
                traces = None
            if self._reason is not None:
                raise ChainLost(self._reason, peer_id=self.failed_peer)
            found.append(traces)
        return found

    def _post(self, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                is_posted = self._first.post(message)
            except LocalProtocolError as error:
                self.leave(f"An operation could not be sent: {error}.")
                return
            if not is_posted:
                self.leave(f"{self._plan.places[0]}: it reads too slowly.", peer_id=self._plan.places[0].peer_id)
                return
            if isinstance(message, FeedPass):
                tokens = sum(len(row.tokens) for row in message.rows)
                self.times.note_sent(message.number, tokens=tokens, now_s=self._loop.time())
                self._sent_at_s = self._loop.time()

    def leave(self, reason: str, *, peer_id: str | None = None, suspects: tuple[str, ...] = ()) -> None:
        """Lose the chain, if it is not lost already; on the event loop.

        `peer_id` is the stage at fault; if it is not known, it is one of `suspects`.
        """
        if self._reason is not None:
            return
        self._reason = reason
        self.failed_peer, self.suspects = peer_id, suspects
        for feed in self._unanswered:
            if not feed.answer.done():
                feed.answer.set_result(None)
        self._unanswered.clear()
        for probe in (each for of_stage in self._probes.values() for each in of_stage):
            if not probe.told.done():
                probe.told.set_result(None)
        self.lost.set()

    @property
    def _is_idle(self) -> bool:
        """True if a stage may consider the chain idle and take its room back."""
        # Half, since the last message took time to arrive.
        return not self._unanswered and self._loop.time() - self._sent_at_s > IDLE_S / 2

    def _sent_s(self, channel: Channel) -> float:
        """The time, by the head's clock, at which a stage sent a message that arrives now."""
        return self._loop.time() - (channel.rtt_s or 0.0) / 2

    async def listen(self, number: int, channel: Channel) -> None:
        """Handle the messages of one stage until the chain is lost with it."""
        place = self._plan.places[number]
        try:
            while True:
                match await channel.receive():
                    case Error(code=code, message=message):
                        if code == ErrorCode.NEIGHBOUR_LOST:
                            # The error of the failed stage itself names the layers.
                            await asyncio.sleep(CAUSE_S)
                        reason = f"{place}: {message.rstrip('.')}."
                        if code == ErrorCode.BAD_ACTIVATIONS and number:
                            # Either the stage before sent them, or this one lies.
                            self.leave(reason, suspects=self.stages[number - 1 : number + 1])
                            return
                        # A stage may take the room of an idle chain for another head.
                        is_due = code == ErrorCode.OVERLOADED and self._is_idle
                        self.leave(reason, peer_id=None if is_due else place.peer_id)
                        return
                    case said:
                        self._take(number, said, self._sent_s(channel))
        except PeerLost as lost:
            self.leave(f"{place}: {lost.reason}.", peer_id=place.peer_id)
        except RemoteProtocolError as error:
            self.leave(f"{place}: {error}.", peer_id=place.peer_id)

    def _take(self, number: int, said: Message, sent_s: float) -> None:
        """Handle a message that a stage sent at `sent_s`. Raises `RemoteProtocolError` if it was not expected."""
        match said:
            case Results() if number == len(self._plan.places) - 1 and self._unanswered:
                feed = self._unanswered.popleft()
                self.times.note_answered(feed.number, answered_s=sent_s)
                if not feed.answer.done():
                    feed.answer.set_result(said)
            case Passed(number=passed, held_us=held_us, came_us=came_us):
                self.times.note_passed(number, passed, held_s=held_us / 1e6, passed_s=sent_s)
                if number and came_us:
                    self.note_came(number, passed, came_us / 1e6)
            case Probed(parts) if self._probes[number] and self._probes[number][0].parts == len(parts):
                probe = self._probes[number].popleft()
                if not probe.told.done():
                    probe.told.set_result(parts)
            case _:
                raise RemoteProtocolError(f"unexpected {type(said).__name__}")


@asynccontextmanager
async def open_chain(
    transport: Transport,
    plan: ChainPlan,
    *,
    answer_s: Callable[[int], float] = lambda tokens: ANSWER_S,
    join_s: float = JOIN_S,
) -> AsyncIterator[RemoteChain]:
    """Set a chain up, from the last stage to the first; it ends with the context. Raises `ChainLost`.

    Each stage has `join_s` to join; `answer_s` returns the seconds to wait for a pass over a number of tokens.
    """
    chain = secrets.token_bytes(CHAIN_ID_BYTES)
    async with AsyncExitStack() as stack:
        channels: dict[int, Channel] = {}
        for number in reversed(range(len(plan.places))):
            place = plan.places[number]
            join = plan.join(number, chain=chain, head=transport.peer_id)
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
            channels[number] = channel
        remote = RemoteChain(plan, channels, secret=secrets.token_bytes(SECRET_BYTES), answer_s=answer_s)
        listening = [asyncio.ensure_future(remote.listen(*each)) for each in channels.items()]
        try:
            yield remote
        finally:
            remote.leave("The chain was given up.")
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
