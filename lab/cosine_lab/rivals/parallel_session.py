"""A session with several verifiers at once, which the product's has not: for `dsi_parallel`.

Each verifier commits the whole stream; what one commits first is the stream's, and the others must agree. The
product's session does all the work, for one verifier at a time: the one whose message is read.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cosine_lab.rivals.dsi_parallel import CommittedAt, OpenedAt, SendTask
from cosine_lab.rivals.rounds import SteppedKind
from cosine_p2p.session.job import Job
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import SignedStreams, Tokens, Upstream
from cosine_p2p.strategy.base import Action, Committed, Event, VerifierOpened
from cosine_p2p.transport.link import Delivery, PeerLink
from cosine_protocol import messages as m
from cosine_protocol.errors import RemoteProtocolError


def session_of(job: Job, *args: Any, **options: Any) -> Session:
    """The session of a job: one in parallel where its strategy names a number of verifiers."""
    is_parallel = isinstance(job.strategy, SteppedKind) and job.strategy.verifiers is not None
    return (ParallelSession if is_parallel else Session)(job, *args, **options)


class SharedStreams(SignedStreams):
    """What verifiers signed side by side: nobody goes on after another, so none is asked to judge one."""

    def parts(self) -> list[tuple[str, int]]:
        return super().parts()[:1]


class ParallelSession(Session):
    """Runs one job at as many verifiers as its strategy wants, each in a slot of its own."""

    def __init__(self, job: Job, *args: Any, **options: Any) -> None:
        super().__init__(job, *args, **options)
        assert isinstance(job.strategy, SteppedKind) and job.strategy.verifiers is not None
        self._verifiers = job.strategy.verifiers
        self._slots: dict[int, Upstream] = {}
        self.signed = SharedStreams()

    @property
    def serving(self) -> tuple[str, ...]:
        return tuple(upstream.peer_id for upstream in self._slots.values())

    async def stream(self) -> AsyncGenerator[Tokens, None]:
        try:
            async with aclosing(super().stream()) as stream:
                async for tokens in stream:
                    yield tokens
        finally:
            for upstream in self._slots.values():
                if upstream is not self._upstream:
                    self._hang_up(upstream)

    async def _find_verifier(self) -> None:
        free = self._verifiers - len(self._slots)
        self._dials.begin(free, now_s=asyncio.get_running_loop().time())
        if not self._slots:
            await super()._find_verifier()

    def _use(self, link: PeerLink) -> bool:
        if len(self._slots) == self._verifiers:
            return False
        free = next(slot for slot in range(self._verifiers) if slot not in self._slots)
        self._upstream = self._slots[free] = self._ask(link)
        return True

    def _turn_to(self, upstream: Upstream) -> None:
        """Let the session see this verifier as its only one."""
        self._upstream = upstream

    def _turn_away(self, upstream: Upstream) -> None:
        """Let the session see any of those that are left."""
        if self._upstream is None:
            self._slots = {slot: other for slot, other in self._slots.items() if other is not upstream}
        self._upstream = next(iter(self._slots.values()), None)

    def _leave_slow(self) -> None:
        for upstream in list(self._slots.values()):
            self._turn_to(upstream)
            super()._leave_slow()
            self._turn_away(upstream)

    def _on_verifier(self, delivery: Delivery) -> Tokens | None:
        upstream = next((one for one in self._slots.values() if one.peer_id == delivery.peer_id), None)
        if upstream is None:
            return None
        self._turn_to(upstream)
        tokens = super()._on_verifier(delivery)
        self._turn_away(upstream)
        return tokens

    def _on_commit(self, upstream: Upstream, commit: m.Commit) -> Tokens | None:
        before, known = upstream.digest, len(self.output) - commit.position
        upstream.take(commit, authors=len(self.job.drafters))
        if tuple(self.output[commit.position : upstream.position]) != commit.tokens[:known]:
            raise RemoteProtocolError("a commit contradicts what another verifier committed")
        digest = self._digest
        new = replace(commit, tokens=commit.tokens[known:], authors=commit.authors[known:])
        tokens = self._advance(upstream, new, before)
        if not new.tokens:
            self._digest = digest
        return tokens if new.tokens else None

    def _on_event(self, event: Event) -> None:
        slot = next((slot for slot, upstream in self._slots.items() if upstream is self._upstream), 0)
        match event:
            case VerifierOpened(pass_s, rtt_s, position, is_here):
                event = OpenedAt(pass_s, rtt_s, position, is_here, slot)
            case Committed(position, tokens, digest, stats):
                event = CommittedAt(position, tokens, digest, stats, slot)
        super()._on_event(event)

    def _perform(self, action: Action) -> None:
        match action:
            case SendTask(block, slot):
                if slot in self._slots:
                    self._slots[slot].post_tree(block)
            case _:
                super()._perform(action)
