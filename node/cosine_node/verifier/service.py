"""The verifier's shell: streams in, the step loop *admit, select, forward, commit*, messages out."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from cosine_node.engine.base import Engine, OutOfPages, Row, RowResult
from cosine_node.engine.curve import CostCurve
from cosine_node.runner import Pass, Runner, count_tokens
from cosine_node.verifier.admission import admitted
from cosine_node.verifier.policy import Policy
from cosine_node.verifier.request import Stage, Step, VerifierRequest
from cosine_node.verifier.selection import (
    MIN_GAIN,
    Candidate,
    best_leaf_probability,
    candidates_of,
    free_nodes,
    rank,
    select_nodes,
)
from cosine_p2p.channel import MAX_SENTENCE, Channel, Progress, serve_channel
from cosine_p2p.transport.base import Stream, Transport
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_TREE_NODES
from cosine_protocol.protocols import VERIFY

LOG = logging.getLogger(__name__)
RETRY_AFTER_S: Final = 2.0
BUDGET_TOKENS: Final = 64
PACE_WEIGHT: Final = 0.1
MAX_SLOWNESS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig:
    """What a verifier serves and how much of it."""

    target_digest: bytes
    tokenizer_digest: bytes
    max_requests: int = 16
    budget_tokens: int = BUDGET_TOKENS
    policy: Policy = field(default_factory=Policy)


@dataclass(slots=True)
class Served:
    """A request together with the channel it is answered on."""

    channel: Channel
    state: VerifierRequest

    @property
    def key(self) -> tuple[Channel, int]:
        return self.channel, self.state.number


class VerifierService:
    """Serves `/cosine/verify`. `run` is the step loop; cancel it to stop."""

    def __init__(
        self, *, engine: Engine, runner: Runner, curve: CostCurve, identity: Identity, config: VerifierConfig
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._curve = curve
        self._identity = identity
        self._config = config
        self._served: dict[tuple[Channel, int], Served] = {}
        self._released: list[int] = []
        self._work = asyncio.Event()
        self._tree_grew = asyncio.Event()
        self._slowness = 1.0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self.progress = Progress()

    @property
    def requests(self) -> int:
        """Requests served now."""
        return len(self._served)

    async def start(self, transport: Transport) -> None:
        """Begin to accept streams."""
        await transport.serve(VERIFY, self.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream until it ends; its requests go with it."""
        await serve_channel(stream, VERIFY, self._receive, on_end=self._end, progress=self.progress)

    async def run(self) -> None:
        """The step loop."""
        while True:
            self._free_cancelled()
            rows = await self._admit_and_select()
            if rows:
                await self._step(rows)
            else:
                if self._is_draining and not self._served:
                    self._is_idle.set()
                self._work.clear()
                await self._work.wait()

    async def drain(self) -> None:
        """Take no new request and return when the present ones are done."""
        self._is_draining = True
        self._wake()
        await self._is_idle.wait()

    def _end(self, channel: Channel, reason: str) -> None:
        LOG.debug("client %s: %s", channel.peer_id, reason)
        for served in self._served.values():
            if served.channel is channel:
                served.state.is_cancelled = True
        self._wake()

    def _wake(self) -> None:
        self._work.set()
        self._tree_grew.set()

    def _receive(self, channel: Channel, message: m.Message) -> None:
        match message:
            case m.Open():
                self._open(channel, message)
            case m.Tree():
                self._attach(channel, message)
            case m.Verify():
                self._ask_pass(channel, message)
            case m.Cancel(number):
                if served := self._served.get((channel, number)):
                    served.state.is_cancelled = True
            case _:
                channel.post(m.Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
        self._wake()

    def _open(self, channel: Channel, message: m.Open) -> None:
        try:
            served = Served(channel, self._admit(message, channel.peer_id))
        except PeerError as refusal:
            channel.post(m.Error(message.number, refusal.code, refusal.message, refusal.retry_after_s))
            return
        if served.key in self._served:
            self._released.append(served.state.sequence)
            channel.post(m.Error(message.number, ErrorCode.MALFORMED, "this request number is in use", None))
            return
        self._served[served.key] = served
        channel.post(m.Opened(message.number, round(1e6 * self._curve.seconds(1))))

    def _admit(self, message: m.Open, client: str) -> VerifierRequest:
        config = self._config
        request = admitted(
            message,
            client,
            engine=self._engine,
            target_digest=config.target_digest,
            tokenizer_digest=config.tokenizer_digest,
        )
        if self._is_draining:
            raise PeerError(ErrorCode.SHUTTING_DOWN, "the verifier is shutting down", RETRY_AFTER_S)
        if len(self._served) >= config.max_requests:
            raise PeerError(ErrorCode.OVERLOADED, f"all {config.max_requests} places are taken", RETRY_AFTER_S)
        return VerifierRequest(
            message.number,
            request,
            m.Pacing(message.pacing),
            len(message.authors),
            self._engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt)),
            list(message.committed),
            keeps_account=config.policy.keeps_account,
        )

    def _attach(self, channel: Channel, message: m.Tree | m.Verify) -> Served | None:
        served = self._served.get((channel, message.number))
        if served is None:
            return None
        state = served.state
        if len(message.authors) != len(message.nodes) or max(message.authors, default=0) > state.authors:
            self._fail(served, PeerError(ErrorCode.MALFORMED, "a tree's authors do not fit its nodes"))
            return None
        # The client cannot know the vocabulary, so a drafter's nonsense must not cost it the request.
        if max(message.nodes.tokens, default=0) >= self._engine.vocab_tokens:
            return served
        if grown := state.tree.attach(message.base, message.position, message.nodes, list(message.authors)):
            deepest = max(node.position for node in grown)
            state.patience.note_arrival(asyncio.get_running_loop().time(), deepest=deepest)
        return served

    def _ask_pass(self, channel: Channel, message: m.Verify) -> None:
        served = self._attach(channel, message)
        if served is None:
            return
        if served.state.stage is not Stage.AWAIT_VERIFY or message.base != served.state.tree.root:
            self._fail(served, PeerError(ErrorCode.MALFORMED, "a pass was asked for on another prefix"))
            return
        served.state.stage = Stage.DECODE

    def _free_cancelled(self) -> None:
        """Between passes only: the engine must not change under a running one."""
        for served in [served for served in self._served.values() if served.state.is_cancelled]:
            self._finish(served, m.FinishReason.CANCELLED)
        for sequence in self._released:
            self._engine.release(sequence)
        self._released.clear()

    def _active(self) -> list[Served]:
        return [s for s in self._served.values() if s.state.stage is not Stage.AWAIT_VERIFY]

    async def _admit_and_select(self) -> list[tuple[Served, Row]]:
        """The rows of the next pass; a request alone may first be held for a draft about to come."""
        active = self._active()
        if self._config.policy.waits_for_drafts and len(active) == 1 and active[0].state.may_hold:
            await self._hold(active[0])
            active = self._active()
        chosen = self._select(active)
        rows = []
        for index, served in enumerate(active):
            nodes = [c.node for c in chosen if c.owner == index]
            row = (
                served.state.prefill_row()
                if served.state.stage is Stage.PREFILL
                else served.state.decode_row(nodes)
            )
            if self._reserve(served, row):
                rows.append((served, row))
        return rows

    def _select(self, active: list[Served]) -> list[Candidate]:
        """Draft nodes of the next pass: all that a stepped request asked for, of the others what pays.

        Without the policy to drop costly nodes the others get all they have, as far as the budget goes. A request
        in debt gets only what is free on the device's curve: that costs nobody, and may end the debt.
        """
        drops_costly = self._config.policy.drops_costly_nodes
        min_gain = MIN_GAIN if drops_costly else 0.0
        stepped: list[Candidate] = []
        in_credit: list[Candidate] = []
        in_debt: list[Candidate] = []
        for index, served in enumerate(active):
            state = served.state
            if state.stage is not Stage.DECODE:
                continue
            depth = state.tokens_left - 1
            if state.pacing is m.Pacing.STEPPED:
                stepped += candidates_of(index, state.tree, max_depth=depth, min_gain=0.0)[:MAX_TREE_NODES]
            else:
                found = candidates_of(index, state.tree, max_depth=depth, min_gain=min_gain)
                (in_credit if state.account.may_speculate else in_debt).extend(found)
        rows, budget = max(1, len(active)), self._config.budget_tokens
        if drops_costly:
            in_credit = select_nodes(
                in_credit, plain_rows=rows, fixed_nodes=len(stepped), curve=self._curve, budget_tokens=budget
            )
        chosen = stepped + rank(in_credit)[: max(0, budget - rows - len(stepped))]
        fed = rows + len(chosen)
        return chosen + rank(in_debt)[: free_nodes(self._curve, fed_tokens=fed, limit=max(0, budget - fed))]

    async def _hold(self, served: Served) -> None:
        """Wait-or-go: hold the pass for a draft about to arrive, while that pays and nobody else is ready."""
        loop = asyncio.get_running_loop()
        state = served.state
        began_s = loop.time()
        while not state.is_cancelled and served.key in self._served and len(self._active()) == 1:
            leaf = best_leaf_probability(candidates_of(0, state.tree, max_depth=state.tokens_left - 1))
            until_s = state.patience.hold_until(
                loop.time(), plain_pass_s=self._curve.seconds(1), leaf_probability=leaf
            )
            if until_s <= loop.time():
                break
            self._tree_grew.clear()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._tree_grew.wait()
            except TimeoutError:
                break
        state.held_s = loop.time() - began_s

    def _reserve(self, served: Served, row: Row) -> bool:
        try:
            self._engine.reserve(served.state.sequence, len(row.tokens))
        except OutOfPages:
            error = PeerError(ErrorCode.OUT_OF_MEMORY, "the verifier's memory is full", RETRY_AFTER_S)
            self._fail(served, error)
            return False
        return True

    async def _step(self, rows: list[tuple[Served, Row]]) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            done = await self._runner.forward([row for _, row in rows])
        except Exception:
            LOG.exception("a pass over %d requests failed", len(rows))
            for served, _ in rows:
                self._fail(served, PeerError(ErrorCode.INTERNAL, "a forward pass failed"))
            return
        self.progress.steps += 1
        self._note_pace([row for _, row in rows], done)
        for (served, row), result in zip(rows, done.results, strict=True):
            if result.error is not None:
                self._fail(served, result.error)
            elif served.key in self._served and not served.state.is_cancelled:
                self._try_commit(served, row, result, done, began_s, len(rows))

    def _note_pace(self, rows: list[Row], done: Pass) -> None:
        """Learn how much longer passes take than the curve says: the machine is busy, or a timer late."""
        ratio = done.elapsed_s / self._curve.seconds(count_tokens(rows))
        self._slowness += PACE_WEIGHT * (min(ratio, MAX_SLOWNESS) - self._slowness)

    def _try_commit(
        self, served: Served, row: Row, result: RowResult, done: Pass, began_s: float, load: int
    ) -> None:
        """One request's failure must not end the loop for the others."""
        try:
            self._commit(served, row, result, done, began_s, load)
        except CosineError as error:
            LOG.exception("a request of %s failed", served.channel.peer_id)
            self._fail(served, PeerError(ErrorCode.INTERNAL, str(error)))

    def _commit(self, served: Served, row: Row, result: RowResult, done: Pass, began_s: float, load: int) -> None:
        state = served.state
        step = state.accept(row, result.choices)
        self._engine.keep(state.sequence, step.accepted_nodes)
        self._engine.prune(state.sequence, row.nodes)
        is_prefill = state.stage is Stage.PREFILL
        state.apply(step)
        held_s = state.book(
            step,
            began_s=began_s,
            elapsed_s=done.elapsed_s,
            plain_pass_s=self._slowness * self._curve.seconds(load),
            nodes=0 if is_prefill else len(row.tokens) - 1,
        )
        if is_prefill:
            self.progress.prefill_tokens += len(row.tokens)
        is_answer = not is_prefill and state.pacing is m.Pacing.STEPPED
        state.stage = Stage.AWAIT_VERIFY if state.pacing is m.Pacing.STEPPED else Stage.DECODE
        self._report(served, step, row, done, held_s, is_answer=is_answer)
        if step.finish is not None:
            self._finish(served, step.finish)

    def _report(self, served: Served, step: Step, row: Row, done: Pass, held_s: float, *, is_answer: bool) -> None:
        stats = m.PassStats(
            nodes=len(row.tokens) - row.scored_from - 1,
            near_ties=step.near_ties,
            pass_us=round(1e6 * done.elapsed_s),
            held_us=round(1e6 * held_s),
        )
        number, digest = served.state.number, served.state.tree.root
        message: m.Message = m.Commit(number, step.position, step.tokens, digest, step.authors, stats)
        if is_answer:
            message = m.Verified(number, step.base, step.position, step.tokens, digest, step.authors, stats)
        if not served.channel.post(message):
            served.state.is_cancelled = True

    def _fail(self, served: Served, error: CosineError) -> None:
        code = error.code if isinstance(error, PeerError) else ErrorCode.BAD_LOGITS
        retry_after_s = error.retry_after_s if isinstance(error, PeerError) else None
        served.channel.post(m.Error(served.state.number, code, str(error)[:MAX_SENTENCE], retry_after_s))
        self._forget(served)

    def _finish(self, served: Served, reason: m.FinishReason) -> None:
        state = served.state
        accepted = tuple(state.accepted.get(author, 0) for author in range(1, state.authors + 1))
        account = m.Account(state.number, reason, len(state.output), state.tree.root, accepted)
        body = encode_body(account)
        served.channel.post(m.Final(body, self._identity.sign(kind="final", digest=state.d_0, body=body)))
        self._forget(served)

    def _forget(self, served: Served) -> None:
        if self._served.pop(served.key, None) is not None:
            self._released.append(served.state.sequence)
            self._wake()
