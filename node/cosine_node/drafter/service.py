"""The drafter's service: serves streams, runs passes over many requests, and sends signed fragments."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from cosine_engine.base import Row, RowResult
from cosine_engine.constraints.grammars import guide_of
from cosine_node.drafter.draft_tree import USUAL_RARITY, Branch, DraftRules, DraftTree
from cosine_node.drafter.request import DraftRows, FollowedRequest, Rows
from cosine_node.passes.counts import DrafterCounts
from cosine_node.passes.runner import ServedEngine
from cosine_p2p.fair_places import IDLE_WANTED_S, Holder, User, whom_to_evict
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.fusion import Calibration
from cosine_p2p.strategy.tree import Block
from cosine_p2p.transport.base import Stream, Transport
from cosine_p2p.transport.channel import Channel, StepCounts, serve_channel, serving_budget
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest
from cosine_protocol.draft import (
    DRAFT,
    MAX_MANDATE_S,
    MAX_TREE_NODES,
    Advance,
    Assign,
    Busy,
    Draft,
    Fragment,
    Mandate,
    NodeBlock,
    Release,
    ReleaseReason,
    Start,
    Started,
    check_length,
    check_live,
    open_mandate,
)
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.identity import Identity, sign
from cosine_protocol.request import Constraint
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage

LOG = logging.getLogger(__name__)
FORGOTTEN_S: Final = 60.0
"""Timeout of a request without messages."""
TICK_S: Final = 5.0
"""Interval of the check for such requests."""
RETRY_AFTER_S: Final = 2.0
"""Sent to clients if the drafter is busy: by then a request has often ended."""
FIRST_CHOICE_POWER: Final = 0.35
"""A small model underestimates its first choice: measured on the embedded family, greedy."""
LEAST_WIDTH: Final = 2
WIDE_PASS: Final = 2.0
"""Maximum time of a pass over one request's nodes, relative to one node, because commits wait for the current pass.
At least `LEAST_WIDTH` nodes are allowed. Where each node takes as long as the first, two nodes per pass are 1.08
times as fast as eight (recorded generations, passes of 42 ms, drafter of 2.5 ms per node, 1 ms away)."""
MAX_MANDATE_USES: Final = 4
"""A verifier reconnects after a failure; more often would waste the drafter's work."""
MAX_TOLD: Final = 256
"""Maximum number of released requests whose clients may still report acceptance."""
RULES: Final = DraftRules(held_passes=2)
"""Two passes save two thirds of the fragments and signatures of nodes that are not urgent."""
MAX_FRAGMENT_BACKLOG_BYTES: Final = 32 << 10
"""Bounds the send buffer of a slow client: some hundred outdated fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Tokenizer of a drafter's target, and the maximum number of concurrent requests."""

    tokenizer_digest: bytes
    max_requests: int = 16


class DrafterService:
    """Serves `/cosine/draft`. `run` is the drafting loop; cancel it to stop."""

    def __init__(
        self,
        served: ServedEngine,
        *,
        identity: Identity,
        config: DrafterConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns Unix seconds."""
        self._served = served
        self._engine = engine = served.engine
        curve = served.curve
        self._most_width = curve.tokens_within(WIDE_PASS, least=LEAST_WIDTH, most=MAX_TREE_NODES)
        self._rows = DraftRows(engine, curve)
        self._identity = identity
        self._clock = clock
        self._config = config
        self._reads = serving_budget(places=config.max_requests)
        self._followed: dict[tuple[Channel, int], FollowedRequest] = {}
        self._released: list[FollowedRequest] = []
        self._admissions = count()
        self._preparing: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._is_draining = False
        self._is_resting = False
        self.capacity_tokens = engine.free_tokens
        self._mandate_uses: Remembered[tuple[str, bytes], int] = Remembered(4096, forgotten_s=MAX_MANDATE_S)
        # By request: nodes sent, and the client's last report of accepted and committed tokens.
        self._told: Remembered[tuple[Channel, int], tuple[int, int, int]] = Remembered(MAX_TOLD)
        self._calibration = Calibration(first_power=FIRST_CHOICE_POWER)
        self.progress = StepCounts()
        self.counts = DrafterCounts()

    @property
    def requests(self) -> int:
        return len(self._followed)

    async def start(self, transport: Transport) -> None:
        await transport.serve(DRAFT, self.handle)

    async def handle(self, stream: Stream) -> None:
        self.counts.streams += 1
        try:
            await serve_channel(
                stream, DRAFT, self._receive, on_end=self._end, progress=self.progress, budget=self._reads
            )
        finally:
            self.counts.streams -= 1

    async def run(self) -> None:
        while True:
            # Release pages between passes: the engine must not change during one.
            for followed in self._released:
                self._engine.release(followed.sequence)
            self._released.clear()
            now_s = asyncio.get_running_loop().time()
            rows, unfit = self._rows.next_rows(self._followed.values(), now_s=now_s)
            for followed in unfit:
                self._leave(followed)
            for followed, _ in rows:
                # Round robin.
                key = (followed.channel, followed.number)
                self._followed[key] = self._followed.pop(key)
            if rows:
                await self._step(rows)
                self._rows.note_pass(elapsed_s=asyncio.get_running_loop().time() - now_s)
            else:
                self._work.clear()
                await self._served.wait_for_work(self._work)

    async def drain(self) -> None:
        """Refuse new requests and end the present ones, which lose only drafts."""
        self._is_draining = True
        for followed in list(self._followed.values()):
            sentence = "the drafter is shutting down"
            followed.channel.post(Error(followed.number, ErrorCode.SHUTTING_DOWN, sentence, None))
            self._release(followed, "shutting_down")

    def rest(self, is_resting: bool) -> None:
        """End all requests and refuse new ones while `is_resting`."""
        self._is_resting = is_resting
        for followed in list(self._followed.values()) if is_resting else ():
            self._leave(followed)

    def _end(self, channel: Channel, reason: str) -> None:
        LOG.debug("client %s: %s", channel.peer_id, reason)
        for followed in [followed for followed in self._followed.values() if followed.channel is channel]:
            self._release(followed, "lost")
        self._work.set()

    def _receive(self, channel: Channel, message: Message) -> None:
        if isinstance(message, Start):
            self._start(channel, message)
        elif isinstance(message, Assign | Advance | Release):
            if isinstance(message, Release):
                self._note_told(channel, message)
            if followed := self._followed.get((channel, message.number)):
                self._follow(followed, message)
        else:
            channel.post(Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
        self._work.set()

    def _note_told(self, channel: Channel, message: Release) -> None:
        """Count the client's report about a request's drafts, which may be repeated."""
        key = (channel, message.number)
        followed = self._followed.get(key)
        sent_nodes, accepted_before, tokens_before = self._told.get(key) or (0, 0, 0)
        if followed is not None:
            sent_nodes += followed.sent_nodes
            if message.reason is not None and followed.sent_nodes:
                self.counts.let_go[ReleaseReason(message.reason)] += 1
        if sent_nodes and message.text_tokens is not None:
            tokens = max(tokens_before, message.text_tokens)
            accepted = max(accepted_before, min(message.accepted or 0, sent_nodes, tokens))
            self.counts.accepted_tokens += accepted - accepted_before
            self.counts.text_tokens += tokens - tokens_before
            self._told.note(key, (sent_nodes, accepted, tokens))

    def _start(self, channel: Channel, message: Start) -> None:
        if self._is_draining or self._is_resting:
            self._answer_busy(channel, message.number)
            return
        request = message.request
        try:
            self._check(channel, message)
            d_0 = message.d_0 or request_digest(request)
            mandate = self._mandate(channel.peer_id, message, d_0) if request.client != channel.peer_id else None
        except PeerError as refusal:
            self.counts.refused[ErrorCode(refusal.code)] += 1
            channel.post(Error(message.number, refusal.code, refusal.message, refusal.retry_after_s))
            return
        if not self._has_room(request.client):
            self._answer_busy(channel, message.number)
            return
        self._tick_soon()
        self._prepare(request.sampling.constraint)
        tree = DraftTree(
            d_0,
            request.prompt,
            message.committed,
            self._calibration,
            rules=RULES,
            counts=self.counts,
            guide=guide_of(self._engine.grammars, request.sampling),
        )
        followed = self._followed[(channel, message.number)] = FollowedRequest(
            channel,
            message.number,
            request,
            d_0,
            tree,
            self._engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt)),
            asyncio.get_running_loop().time(),
            admission=next(self._admissions),
            mandate=mandate,
        )
        self.counts.opened += 1
        followed.log.info("followed, %d prompt tokens", len(request.prompt))

    def _prepare(self, constraint: Constraint | None) -> None:
        """Compile a new constraint in the background; until then drafts ignore it."""
        grammars = self._engine.grammars
        if constraint is None or grammars is None or grammars.fault(constraint) is not None:
            return
        if len(self._preparing) < self._config.max_requests:

            async def prepare() -> None:
                # After a failure drafts ignore the constraint.
                with suppress(OSError):
                    await grammars.prepare(constraint)

            task = asyncio.ensure_future(prepare())
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)

    def _check(self, channel: Channel, message: Start) -> None:
        """Raise `PeerError` if a request cannot be followed."""
        request = message.request
        tokens = (*request.prompt, *message.committed)
        if not request.prompt:
            raise PeerError(ErrorCode.MALFORMED, "the request does not fit its stream")
        if request.tokenizer_digest != self._config.tokenizer_digest:
            raise PeerError(ErrorCode.WRONG_TOKENIZER, "the drafter has another tokenizer")
        if max(tokens) >= self._engine.vocab_tokens:
            raise PeerError(ErrorCode.WRONG_TOKENIZER, "a token id lies outside the drafter's vocabulary")
        if len(tokens) >= self._engine.context_tokens:
            raise PeerError(ErrorCode.PROMPT_TOO_LONG, "the prompt is longer than the drafter's context")
        if (channel, message.number) in self._followed:
            raise PeerError(ErrorCode.MALFORMED, "this request number is in use")

    def _mandate(self, delegate: str, message: Start, d_0: bytes) -> Mandate:
        """The mandate of a delegate for the request `d_0`, which allows one place at a time. Raises `PeerError`."""
        if message.mandate is None:
            raise PeerError(ErrorCode.MALFORMED, "the request does not fit its stream")
        client, now_s = message.request.client, self._clock()
        mandate = open_mandate(message.mandate, client=client, d_0=d_0, delegate=delegate, now_s=now_s)
        check_length(mandate, len(message.committed))
        if self._identity.peer_id not in mandate.drafters:
            raise PeerError(ErrorCode.BAD_MANDATE, "the mandate does not name this drafter")
        window_tokens = mandate.prompt_window_tokens
        if window_tokens is not None and len(message.request.prompt) > window_tokens:
            raise PeerError(ErrorCode.BAD_MANDATE, "the prompt is longer than the mandate's window")
        if message.d_0 is not None and mandate.shown != request_digest(message.request):
            raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is for another prompt")
        if any(one.d_0 == d_0 and one.channel.peer_id == delegate for one in self._followed.values()):
            raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is in use already")
        uses = 1 + (self._mandate_uses.get((delegate, d_0), now_s) or 0)
        if uses > MAX_MANDATE_USES:
            raise PeerError(ErrorCode.BAD_MANDATE, "the mandate is used up")
        self._mandate_uses.note((delegate, d_0), uses, now_s)
        return mandate

    def _has_room(self, client: str) -> bool:
        """True if there is a free place, or one could be taken from another request (`whom_to_evict`)."""
        if len(self._followed) < self._config.max_requests:
            return True
        followed, now_s = list(self._followed.values()), asyncio.get_running_loop().time()
        holders = [
            Holder(User(one.request.client), one.admission, is_idle=now_s - one.heard_at_s > IDLE_WANTED_S)
            for one in followed
        ]
        if (index := whom_to_evict(User(client), holders)) is None:
            return False
        self._leave(followed[index])
        return True

    def _leave(self, followed: FollowedRequest) -> None:
        """End a request; the client may retry."""
        self._answer_busy(followed.channel, followed.number)
        self._release(followed, "busy")

    def _tick_soon(self) -> None:
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now_s = asyncio.get_running_loop().time()
        for followed in list(self._followed.values()):
            if now_s - followed.heard_at_s > FORGOTTEN_S:
                self._leave(followed)
        if self._followed:
            self._tick_soon()

    def _answer_busy(self, channel: Channel, number: int) -> None:
        self.counts.busy += 1
        channel.post(Busy(number, RETRY_AFTER_S))

    def _follow(self, followed: FollowedRequest, message: Assign | Advance | Release) -> None:
        followed.heard_at_s = asyncio.get_running_loop().time()
        mandate = followed.mandate
        try:
            # A release is always allowed.
            if mandate is not None and not isinstance(message, Release):
                check_live(mandate, now_s=self._clock())
                if isinstance(message, Advance):
                    check_length(mandate, message.position + len(message.tokens))
        except PeerError as ended:
            self._fail(followed, ErrorCode(ended.code), ended.message)
            return
        match message:
            case Assign():
                width = min(message.width, self._most_width)
                place = (message.base, message.depth, width, message.window)
                branch = Branch(*place, message.rarity or USUAL_RARITY)
                self._send(followed, followed.tree.assign(branch))
            case Advance():
                if max(message.tokens, default=0) < self._engine.vocab_tokens:
                    block = followed.tree.advance(message.position, message.tokens)
                    self._send(followed, block)
            case Release(number):
                # The answer is a signed account of the sent nodes.
                tree, sent_nodes = followed.tree, min(followed.sent_nodes, MAX_NEW_TOKENS)
                account = Account(number, FinishReason.CANCELLED, tree.position, tree.digest, (sent_nodes,))
                signed = sign(self._identity, account, digest=followed.d_0)
                followed.channel.post(FinalMessage(signed.body, signed.signature))
                self._release(followed, "released")

    async def _step(self, rows: Rows) -> None:
        try:
            done = await self._served.runner.forward([row for _, row in rows])
        except Exception:
            LOG.exception("a pass over %d requests failed", len(rows))
            self.counts.passes_failed += 1
            for followed, _ in rows:
                self._fail(followed, ErrorCode.INTERNAL, "a forward pass failed")
            return
        self.progress.steps += 1
        self.counts.note_pass(seconds=done.elapsed_s, rows=len(rows))
        for (followed, row), result in zip(rows, done.results, strict=True):
            if result.error is not None:
                self._fail(followed, ErrorCode.BAD_LOGITS, str(result.error))
            elif (followed.channel, followed.number) in self._followed:
                self._absorb(followed, row, result)

    def _absorb(self, followed: FollowedRequest, row: Row, result: RowResult) -> None:
        """Add a row's result to its tree; the first one answers the `Start`."""
        block = followed.tree.absorb(row, result.choices)
        if not followed.has_started:
            followed.has_started = True
            self.counts.prompt_tokens += len(row.tokens)
            token_us = round(1e6 * self._served.pass_s)
            followed.channel.post(Started(followed.number, result.nll or 0.0, token_us))
        self._send(followed, block)

    def _send(self, followed: FollowedRequest, block: Block | None) -> None:
        """Post drafted nodes as a signed fragment, unless the client reads too slowly."""
        if block is None:
            return
        if followed.channel.waiting_bytes > MAX_FRAGMENT_BACKLOG_BYTES:
            self.counts.dropped_fragments += 1
            return
        self.counts.drafted_requests += not followed.sent_fragments
        followed.sent_fragments += 1
        followed.sent_nodes += len(block.nodes)
        nodes = NodeBlock.of(block.nodes)
        draft = Draft(followed.number, followed.sent_fragments, block.base, block.position, nodes)
        signed = sign(self._identity, draft, digest=followed.d_0)
        followed.channel.post(Fragment(signed.body, signed.signature))
        self.counts.sent_fragments += 1
        self.counts.sent_nodes += len(block.nodes)

    def _fail(self, followed: FollowedRequest, code: ErrorCode, sentence: str) -> None:
        followed.channel.post(Error(followed.number, code, sentence, None))
        self._release(followed, "error")

    def _release(self, followed: FollowedRequest, ending: str) -> None:
        if self._followed.pop((followed.channel, followed.number), None) is not None:
            self.counts.ended[ending] += 1
            followed.log.info("%s, %d tokens drafted", ending, followed.sent_nodes)
            self._released.append(followed)
            self._work.set()
