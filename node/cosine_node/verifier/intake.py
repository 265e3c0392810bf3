"""The intake of a verifier: requests and audits are checked, prepared, and get a place.

An opening is checked when it arrives, and again after each wait. A constraint is compiled first, in a separate
process. Then the opening gets a place, waits in a line for one, or is refused. Waiting openings get the places that
become free.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Generic, TypeVar

from cosine_engine.constraints.grammars import Grammars
from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig
from cosine_node.verifier.step_loop import StepLoop
from cosine_p2p.fair_places import FairQueue, User
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.transport.channel import Channel
from cosine_protocol.audit import AskAudit
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Constraint
from cosine_protocol.stream import Error
from cosine_protocol.verify import Open

LOG = logging.getLogger(__name__)
MOST_COMPILED: Final = 32
"""Bounds memory: a constraint has at most 64 KB, and compiling it takes a few seconds at most."""
_Asked = TypeVar("_Asked", Open, AskAudit)


def number_in_use() -> PeerError:
    return PeerError(ErrorCode.MALFORMED, "this request number is in use")


def cannot_judge(reason: str) -> PeerError:
    return PeerError(ErrorCode.UNSUPPORTED, f"cannot judge: {reason}", RETRY_AFTER_S)


def shutting_down() -> PeerError:
    return PeerError(ErrorCode.SHUTTING_DOWN, "the verifier is shutting down", RETRY_AFTER_S)


class RequestIntake(ABC, Generic[_Asked]):
    """The openings of one protocol: those whose constraint is compiled, and those that wait for a place."""

    waits_s: ClassVar[float]
    """The longest time in a line."""

    def __init__(self, loop: StepLoop, config: VerifierConfig, *, lines: int = 1) -> None:
        """Openings in earlier `lines` go first."""
        self.capacity_tokens = loop.engine.free_tokens
        self.counts = loop.counts
        self._loop = loop
        self._requests = loop.requests
        self._config = config
        self._compiling: dict[tuple[Channel, int], asyncio.Task[None]] = {}
        self._lines: list[FairQueue[tuple[Channel, _Asked]]] = [FairQueue() for _ in range(lines)]
        self._is_draining = False

    @abstractmethod
    def _check(self, channel: Channel, asked: _Asked) -> None:
        """Raise `PeerError` with the reason if an opening cannot be served now."""

    @property
    @abstractmethod
    def _has_place(self) -> bool:
        """True if there is a free place."""

    @abstractmethod
    def _begin(self, channel: Channel, asked: _Asked) -> None:
        """Serve an opening. Raises `PeerError` with the reason for a refusal."""

    @abstractmethod
    def _line_of(self, user: User, asked: _Asked) -> FairQueue[tuple[Channel, _Asked]] | None:
        """The line in which an opening may wait; None if it may not."""

    @abstractmethod
    def _no_place(self) -> PeerError:
        """The refusal of an opening for which no place becomes free."""

    def _user_of(self, channel: Channel, asked: _Asked) -> User:
        """The user behind an opening."""
        return User(channel.peer_id)

    def _make_room(self, user: User) -> None:
        """Free a place for a user, if it may take one from others."""

    def ask(self, channel: Channel, asked: _Asked) -> None:
        """Serve an opening, put it into a line, or refuse it."""
        constraint, grammars = asked.request.sampling.constraint, self._loop.engine.grammars
        with self._refusing(channel, asked.number):
            self._check(channel, asked)
            if grammars is None or constraint is None or grammars.fault(constraint) is not None:
                self._place(channel, asked)
                return
            key = channel, asked.number
            if key in self._compiling:
                raise number_in_use()
            if len(self._compiling) >= MOST_COMPILED:
                raise PeerError(ErrorCode.OVERLOADED, "too many constraints are compiled already", RETRY_AFTER_S)
            self._compiling[key] = asyncio.ensure_future(self._compile(channel, asked, grammars, constraint))

    async def _compile(self, channel: Channel, asked: _Asked, grammars: Grammars, constraint: Constraint) -> None:
        """Compile the constraint of an opening, and give it a place."""
        failure = None
        try:
            await grammars.prepare(constraint)
        except OSError:
            failure = PeerError(ErrorCode.OVERLOADED, "the constraint cannot be compiled now", RETRY_AFTER_S)
        except Exception:
            LOG.exception("a constraint could not be tried")
            failure = PeerError(ErrorCode.INTERNAL, "the constraint could not be compiled")
        del self._compiling[channel, asked.number]
        with self._refusing(channel, asked.number):
            if failure is not None:
                raise failure
            self._check(channel, asked)
            self._place(channel, asked)
        self._loop.wake()

    def _place(self, channel: Channel, asked: _Asked) -> None:
        """Serve an opening, or put it into a line. Raises `PeerError` for a refusal."""
        user = self._user_of(channel, asked)
        self._make_room(user)
        if self._has_place:
            self._begin(channel, asked)
            return
        line, waiting = self._line_of(user, asked), (channel, asked)
        if line is None or not line.put(user, waiting):
            raise self._no_place()
        asyncio.get_running_loop().call_later(self.waits_s, self._end_waiting, waiting)

    def serve_waiting(self) -> None:
        """Give free places to openings that wait."""
        for line in self._lines:
            while self._has_place and (waiting := line.take()):
                with self._refusing(waiting[0], waiting[1].number):
                    self._check(*waiting)
                    self._begin(*waiting)

    def _end_waiting(self, waiting: tuple[Channel, _Asked]) -> None:
        """Refuse an opening that still waits."""
        for line in self._lines:
            for channel, asked in line.take_where(lambda one: one is waiting):
                self.refuse(channel, asked.number, self._no_place())

    def cancel(self, channel: Channel, number: int) -> None:
        """Refuse an opening that waits or whose constraint is being compiled."""
        for line in self._lines:
            if line.take_where(lambda one: one[0] is channel and one[1].number == number):
                self.refuse(channel, number, self._no_place())
        if task := self._compiling.pop((channel, number), None):
            task.cancel()
            self.refuse(channel, number, self._no_place())

    def leave(self, channel: Channel, reason: str) -> None:
        """Forget all openings of a stream that has ended, and cancel its requests."""
        LOG.debug("client %s: %s", channel.peer_id, reason)
        self._requests.cancel_all(channel)
        for key in [key for key in self._compiling if key[0] is channel]:
            self._compiling.pop(key).cancel()
        for line in self._lines:
            line.take_where(lambda one: one[0] is channel)
        self._loop.wake()

    def refuse_all(self) -> None:
        """Refuse new and waiting openings, since the verifier shuts down."""
        self._is_draining = True
        for line in self._lines:
            for channel, asked in line.take_where(lambda _: True):
                self.refuse(channel, asked.number, shutting_down())

    def refuse(self, channel: Channel, number: int, refusal: PeerError) -> None:
        """Send the client the reason for a refusal."""
        self.counts.refused[ErrorCode(refusal.code)] += 1
        LOG.info("client=%s: refused, %s", channel.peer_id[-PEER_LETTERS:], refusal.message)
        channel.post(Error(number, refusal.code, refusal.message, refusal.retry_after_s))

    @contextmanager
    def _refusing(self, channel: Channel, number: int) -> Iterator[None]:
        """Refuse an opening with the `PeerError` raised in the context."""
        try:
            yield
        except PeerError as refusal:
            self.refuse(channel, number, refusal)
