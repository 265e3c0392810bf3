"""The drafters of one session: the tokens sent to each, and the fragments received."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from cosine_p2p.session.counts import DrafterLedger
from cosine_p2p.session.delegation import DRAFTER_SILENCE_S
from cosine_p2p.session.drafts import Drafts, SignedDraft
from cosine_p2p.session.job import Job, Shared
from cosine_p2p.strategy.base import DrafterLost, DrafterStarted, FragmentReceived
from cosine_p2p.transport.link import Delivery, PeerLink, check_knows
from cosine_p2p.transport.patience import end_all
from cosine_protocol.codec import Message
from cosine_protocol.draft import (
    DRAFT,
    MAX_COMMIT_TOKENS,
    WINDOWS,
    Advance,
    Draft,
    Fragment,
    Release,
    ReleaseReason,
    Start,
    Started,
)
from cosine_protocol.errors import BadSignature, OlderPeer, PeerLost
from cosine_protocol.identity import check_signature
from cosine_protocol.stream import Final as FinalMessage

START_TIMEOUT_S: Final = DRAFTER_SILENCE_S / 2  # Longer than the timeout of links.
MAX_WAITING_FRAGMENTS: Final = 64  # Bounds memory per drafter; far more than arrive during one check.


@dataclass(slots=True)
class _Follower:
    link: PeerLink
    known_tokens: int


class DraftingObserver(Protocol):
    def note_decision(self, author: int, why: str) -> None:
        """Note a decision about a drafter, or with author 0 about their number."""

    def note_lost(self, author: int) -> None: ...


class Drafters:
    """A job's drafters by author number. `output` grows; `deliver` receives checked fragments, messages, losses."""

    def __init__(
        self,
        ledger: DrafterLedger,
        *,
        job: Job,
        shared: Shared,
        number: int,
        drafts: Drafts,
        d_0: bytes,
        output: Sequence[int],
        deliver: Callable[[Delivery | FragmentReceived], None],
    ) -> None:
        self._ledger = ledger
        self._job = job
        self._shared = shared
        self._number = number
        self._drafts = drafts
        self._d_0 = d_0
        self._output = output
        self._deliver = deliver
        self._wanted: set[int] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._followers: dict[int, _Follower] = {}
        self._unchecked: dict[str, deque[Delivery]] = {}
        self._has_unchecked = asyncio.Event()
        self._refused: set[str] = set()

    async def _check_fragments(self) -> None:
        """Check signatures in a thread, in turns by drafter; a false signature ends its drafter."""
        while True:
            while not self._unchecked:
                self._has_unchecked.clear()
                await self._has_unchecked.wait()
            peer_id = next(iter(self._unchecked))
            waiting = self._unchecked.pop(peer_id)
            delivery = waiting.popleft()
            if waiting:
                self._unchecked[peer_id] = waiting
            fragment, draft = delivery.message, delivery.body
            if not isinstance(fragment, Fragment) or not isinstance(draft, Draft):
                continue
            check = partial(check_signature, Draft, fragment, author=peer_id, digest=self._d_0)
            try:
                await self._shared.offload(check)
            except BadSignature as error:
                self._refused.add(peer_id)
                self._unchecked.pop(peer_id, None)
                self._deliver(Delivery(peer_id, DRAFT, None, lost=str(error)))
                continue
            author = self._ledger.author_of(peer_id)
            digests = self._drafts.add(author, SignedDraft(fragment, is_checked=True), draft)
            self._ledger.note_drafted(author, len(draft.nodes))
            self._deliver(FragmentReceived(author, draft, digests))

    def follow(self, *authors: int) -> None:
        """Ask drafters to follow the output."""
        if self._checking is None:
            self._checking = asyncio.ensure_future(self._check_fragments())
        for author in authors:
            self._wanted.add(author)
            dial = asyncio.ensure_future(self._dial(author))
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)

    async def _dial(self, author: int) -> None:
        peer_id = self._ledger.peer_ids[author - 1]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                link = await self._shared.links.get(peer_id, DRAFT)
                if self._job.prompt_window_tokens and WINDOWS not in await link.named_features():
                    raise PeerLost(peer_id, "it drafts after whole prompts only")
                await check_knows(link, self._job.request)
        except (PeerLost, TimeoutError) as error:
            if not isinstance(error, OlderPeer):
                self._shared.failures.note_failed(peer_id, now_s=asyncio.get_running_loop().time())
            self._deliver(Delivery(peer_id, DRAFT, None, lost="it could not be reached"))
            return
        if author in self._wanted and author not in self._followers:
            link.subscribe(self._number, self._on_message)
            self._followers[author] = _Follower(link, len(self._output))
            job = self._job
            d_0 = None if job.prompt_window_tokens is None else self._d_0
            link.post(Start(self._number, job.shown_request, tuple(self._output), job.mandate, d_0))

    def _on_message(self, delivery: Delivery) -> None:
        peer_id = delivery.peer_id
        if not isinstance(delivery.message, Fragment):
            self._deliver(delivery)
        elif peer_id not in self._refused:
            self._unchecked.setdefault(peer_id, deque(maxlen=MAX_WAITING_FRAGMENTS)).append(delivery)
            self._has_unchecked.set()

    def event_of(self, delivery: Delivery) -> DrafterStarted | DrafterLost | None:
        """Return the strategy's event for a drafter's message or loss.

        A drafter that breaks the protocol is released.
        """
        author = self._ledger.author_of(delivery.peer_id)
        match delivery.message:
            case Started(_, prompt_nll, token_us) if author in self._followers:
                rtt_s = self._followers[author].link.rtt_s
                self._ledger.note_rtt(author, rtt_s)
                self.advance(author, len(self._output))
                return DrafterStarted(author, prompt_nll, token_us / 1e6, rtt_s)
            case FinalMessage():
                return None
            case _:
                self.release(author)
                return DrafterLost(author)

    def advance(self, author: int, position: int) -> None:
        """Send a follower the stream up to `position` without a gap; a drafter ignores what follows one."""
        follower = self._followers.get(author)
        while follower is not None and follower.known_tokens < position:
            end = min(position, follower.known_tokens + MAX_COMMIT_TOKENS)
            tokens = tuple(self._output[follower.known_tokens : end])
            if not follower.link.post(Advance(self._number, follower.known_tokens, tokens)):
                return
            follower.known_tokens = end

    def post(self, author: int, message: Message) -> None:
        if follower := self._followers.get(author):
            follower.link.post(message)

    def release(self, author: int, reason: ReleaseReason = ReleaseReason.ENDED) -> None:
        """Release a drafter, also one that was lost or has not started yet."""
        self._wanted.discard(author)
        text_tokens = len(self._output)
        accepted = min(self._ledger.accepted(author), text_tokens)
        self.post(author, Release(self._number, accepted, text_tokens, reason))
        self._followers.pop(author, None)

    async def close(self) -> None:
        for author in list(self._followers):
            self.release(author)
        for peer_id in self._ledger.peer_ids:
            if link := self._shared.links.alive(peer_id, DRAFT):
                link.unsubscribe(self._number)
        await end_all([*self._dials, *([self._checking] if self._checking is not None else [])])
