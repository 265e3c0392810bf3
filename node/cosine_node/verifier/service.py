"""The verifier service: it accepts streams, admits requests and gives them to the step loop."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count

from cosine_engine.base import Engine
from cosine_engine.constraints.grammars import guide_of
from cosine_engine.curve import CostCurve, break_even
from cosine_engine.models.unloading import WaitForWork
from cosine_node.chains.chain import StageChain
from cosine_node.passes.counts import VerifierCounts
from cosine_node.passes.runner import Runner
from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig, admitted
from cosine_node.verifier.audits import AuditService
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.pass_rows import PassRows
from cosine_node.verifier.preparations import Preparations
from cosine_node.verifier.request import (
    DraftRates,
    KvState,
    PromptLookup,
    SpeculationAccount,
    VerifierRequest,
)
from cosine_node.verifier.scheduler import pass_budget_tokens
from cosine_node.verifier.served import ServedRequests, log_of
from cosine_node.verifier.step_loop import StepLoop
from cosine_p2p.fair_places import FairQueue, Holder, User, whom_to_evict
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.prediction import Prediction
from cosine_p2p.strategy.speed_trial import MAX_TRIALS, TrialPath
from cosine_p2p.transport.base import Stream, Transport
from cosine_p2p.transport.channel import Channel, serve_channel, serving_budget
from cosine_p2p.trust.audit_rule import rounding_of
from cosine_protocol.audit import AUDIT
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.numerics import DETERMINISTIC
from cosine_protocol.request import ConstraintKind, Request, Sampling
from cosine_protocol.stage import MAX_NAMED_STAGES
from cosine_protocol.stream import Error
from cosine_protocol.verify import (
    USER_BYTES,
    VERIFY,
    Cancel,
    Declined,
    Delegate,
    Open,
    Opened,
    Pacing,
    Revoke,
    Tree,
)

LOG = logging.getLogger(__name__)


class VerifierService:
    """Serves `/cosine/verify` by a step loop, `run`. Without a `coordinator` mandates are declined."""

    def __init__(
        self,
        *,
        engine: Engine,
        runner: Runner,
        curve: CostCurve,
        identity: Identity,
        config: VerifierConfig,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        home: HomeDrafter | None = None,
        coordinator: RequestCoordinator | None = None,
        chain: StageChain | None = None,
        make_rows: Callable[..., PassRows] = PassRows,
        knows: Callable[[str], bool] = lambda author: False,
    ) -> None:
        """With a `chain` the model runs on stages; `knows` is true for known verifiers of the target."""
        self._engine = engine
        self._chain = chain
        self._coordinator = coordinator
        self.pass_s = curve.seconds(1)
        self._home = home
        self._config = config
        self.capacity_tokens = engine.free_tokens
        self._reads = serving_budget(places=config.max_requests)
        self._requests = ServedRequests()
        self._admissions = count()
        self._is_draining = False
        self._is_resting = False
        self._rates: Remembered[TrialPath, DraftRates] = Remembered(MAX_TRIALS)
        self.counts = VerifierCounts()
        self._loop = StepLoop(
            self._requests,
            engine=engine,
            runner=runner,
            curve=curve,
            identity=identity,
            budget_tokens=config.budget_tokens or pass_budget_tokens(curve),
            counts=self.counts,
            wait_for_work=wait_for_work,
            home=home,
            chain=chain,
            on_place=self._serve_waiting,
            make_rows=make_rows,
        )
        self.progress = self._loop.progress
        self.audits = AuditService(
            self._requests,
            engine=engine,
            config=config,
            counts=self.counts,
            wake=self._loop.wake,
            knows=knows,
            why_not=lambda: None if chain is None else chain.why_not_judge,
        )
        self._queue: FairQueue[tuple[Channel, Open]] = FairQueue()
        self._preparations = Preparations()

    @property
    def requests(self) -> int:
        """The number of requests served now."""
        return len(self._requests)

    @property
    def waiting(self) -> int:
        """The number of requests served now that have no pages yet."""
        return sum(request.unfed_tokens > 0 and not request.kv.has_pages for request in self._requests)

    @property
    def stages(self) -> tuple[str, ...]:
        """The peer ids of its stages, at most `MAX_NAMED_STAGES`; empty if it computes itself."""
        return self._chain.stages[:MAX_NAMED_STAGES] if self._chain is not None else ()

    async def start(self, transport: Transport) -> None:
        """Begin to accept streams."""
        await transport.serve(VERIFY, self.handle)
        await transport.serve(AUDIT, self.audits.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream, and cancel its requests when it ends."""
        self.counts.streams += 1
        try:
            await serve_channel(
                stream, VERIFY, self._receive, on_end=self._end, progress=self.progress, budget=self._reads
            )
        finally:
            self.counts.streams -= 1

    async def run(self) -> None:
        """Run the step loop until cancelled."""
        try:
            await self._loop.run()
        finally:
            if self._coordinator is not None:
                await self._coordinator.close()

    def rest(self, is_resting: bool) -> None:
        """Refuse new requests while `is_resting`; the present ones go on."""
        self._is_resting = is_resting

    async def drain(self) -> None:
        """Refuse new requests, and return when the present ones are done."""
        self._is_draining = True
        self.audits.drain()
        for channel, message in self._queue.take_where(lambda _: True):
            self._refuse(channel, message.number, _shutting_down())
        self._loop.is_idle.clear()
        self._loop.wake()
        await self._loop.is_idle.wait()

    def _end(self, channel: Channel, reason: str) -> None:
        LOG.debug("client %s: %s", channel.peer_id, reason)
        self._requests.cancel_all(channel)
        self._preparations.cancel_all(channel)
        self._queue.take_where(lambda waiting: waiting[0] is channel)
        self._loop.wake()

    def _receive(self, channel: Channel, message: Message) -> None:
        match message:
            case Open():
                self._open(channel, message)
            case Tree() | Delegate() | Revoke() | Cancel():
                request = self._requests.get(channel, message.number)
                if isinstance(request, VerifierRequest):
                    self._act(request, message)
                else:
                    self._act_on_waiting(channel, message)
            case _:
                channel.post(Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
        self._loop.wake()

    def _act(self, request: VerifierRequest, message: Tree | Delegate | Revoke | Cancel) -> None:
        match message:
            case Tree():
                self._attach(request, message)
            case Delegate():
                self._coordinate(request, message)
            case Revoke():
                if self._coordinator is not None:
                    self._coordinator.end(request)
            case Cancel():
                request.is_cancelled = True

    def _act_on_waiting(self, channel: Channel, message: Tree | Delegate | Revoke | Cancel) -> None:
        """Handle a message for a request that is not served but may wait for a place."""
        match message:
            case Delegate(number):
                channel.post(Declined(number, "the request has no place here yet"))
            case Cancel(number):
                cancelled = self._queue.take_where(lambda one: one[0] is channel and one[1].number == number)
                if cancelled or self._preparations.cancel(channel, number):
                    self._refuse(channel, number, self._taken())

    def _open(self, channel: Channel, message: Open) -> None:
        """Begin a request, queue it for a place or for its constraint, or refuse it."""
        user = _user_of(channel, message)
        try:
            asked = self._checked(channel, message)
            grammars, constraint = self._engine.grammars, asked.sampling.constraint
            if grammars is not None and constraint is not None and grammars.fault(constraint) is None:
                then = partial(self._open_prepared, channel, message)
                self._preparations.begin(channel, message.number, grammars, constraint, then)
                return
            self._make_room(user)
        except PeerError as refusal:
            self._refuse(channel, message.number, refusal)
            return
        if len(self._requests) < self._config.max_requests:
            self._begin(channel, message, asked)
            return
        # A client with fewer places than its share may wait for one, and so may a user of the client.
        held = [request.user for request in self._requests]
        clients, users = [one.client for one in held], [one for one in held if one.client == user.client]
        lacks_places = len(users) < self._config.max_requests / len({user.client, *clients}) or users.count(
            user
        ) < len(users) / len({user, *users})
        waiting = channel, message
        if lacks_places and self._queue.put(user, waiting):
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._end_waiting, waiting)
        else:
            self._refuse(channel, message.number, self._taken())

    def _open_prepared(self, channel: Channel, message: Open, failure: PeerError | None) -> None:
        """Open a request after its constraint was compiled."""
        if failure is not None:
            self._refuse(channel, message.number, failure)
        else:
            self._open(channel, message)
            self._loop.wake()

    def _taken(self) -> PeerError:
        return PeerError(ErrorCode.OVERLOADED, f"all {self._config.max_requests} places are taken", RETRY_AFTER_S)

    def _refuse(self, channel: Channel, number: int, refusal: PeerError) -> None:
        self.counts.refused[ErrorCode(refusal.code)] += 1
        LOG.info("client=%s: refused, %s", channel.peer_id[-PEER_LETTERS:], refusal.message)
        channel.post(Error(number, refusal.code, refusal.message, refusal.retry_after_s))

    def _checked(self, channel: Channel, message: Open) -> Request:
        """The request of an `Open`. Raises `PeerError` with the reason if it cannot be served here."""
        asked = admitted(message, channel.peer_id, engine=self._engine, config=self._config)
        if self._is_draining:
            raise _shutting_down()
        if self._is_resting:
            raise PeerError(ErrorCode.OVERLOADED, "the verifier rests now", RETRY_AFTER_S)
        tokens = len(asked.prompt) + asked.max_new_tokens
        if tokens > self.capacity_tokens:
            sentence = f"the request needs room for {tokens} tokens, the verifier has {self.capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        if self.waiting and len(asked.prompt) > self._engine.free_tokens:
            raise PeerError(ErrorCode.OVERLOADED, "other requests wait for memory already", RETRY_AFTER_S)
        if self._requests.get(channel, message.number) is not None:
            raise PeerError(ErrorCode.MALFORMED, "this request number is in use")
        return asked

    def _make_room(self, user: User) -> None:
        """If all places are taken, evict an audit, or a request of a user with more places than this one."""
        served = list(self._requests)
        if not served or len(served) < self._config.max_requests:
            return
        holders = [Holder(request.user, request.admission, is_idle=request.gives_way) for request in served]
        if (index := whom_to_evict(user, holders)) is not None:
            self._loop.fail(served[index], self._taken())

    def _serve_waiting(self) -> None:
        """Give free places to waiting requests."""
        while len(self._requests) < self._config.max_requests and (next_one := self._queue.take()):
            channel, message = next_one
            try:
                self._begin(channel, message, self._checked(channel, message))
            except PeerError as refusal:
                self._refuse(channel, message.number, refusal)
        self.audits.serve_waiting()

    def _end_waiting(self, waiting: tuple[Channel, Open]) -> None:
        """Refuse a request that still waits."""
        for channel, message in self._queue.take_where(lambda one: one is waiting):
            self._refuse(channel, message.number, self._taken())

    def _begin(self, channel: Channel, message: Open, asked: Request) -> None:
        """Begin to serve a request."""
        request = self.request_of(channel, message, asked)
        self._requests.add(request)
        self._queue.note_given(request.user, len(asked.prompt) + asked.max_new_tokens)
        self.counts.opened += 1
        log_of(request).info("opened, %d prompt tokens", len(request.request.prompt))
        channel.post(self._opened(message.number))

    def _opened(self, number: int) -> Opened:
        # Requests share passes, so their load must not count against a client's drafts.
        pass_s = self._loop.curve.seconds(len(self._requests)) if self._chain is None else self.pass_s
        return Opened(number, round(1e6 * pass_s), self.break_even)

    @property
    def plain_pass_s(self) -> float:
        """The time of a one-token pass by recent passes; over stages the time of a whole traversal."""
        return self._loop.curve.seconds(1) if self._chain is None else self.pass_s

    @property
    def break_even(self) -> int | None:
        """The permille of remote drafts that must be accepted to pay, next to home drafts; None over stages."""
        if self._chain is not None:
            return None
        curve = self._loop.curve
        beside = 1.0 if self._home is None else self._home.speedup(curve)
        return round(1000 * break_even(curve, beside=beside))

    def request_of(self, channel: Channel, message: Open, asked: Request) -> VerifierRequest:
        """A new request with an empty sequence."""
        # The empty scope is shared by all clients; a client's own scope is its peer id, which is never empty.
        scope = "" if self._config.shares_prefixes else channel.peer_id
        if message.cache_scope is not None:
            scope = f"{scope} {message.cache_scope.hex()}"
        sequence = self._engine.open(sampling=asked.sampling, prompt_tokens=len(asked.prompt), scope=scope)
        path = TrialPath.of(channel.peer_id, asked.sampling.temperature)
        if (rates := self._rates.get(path)) is None:
            rates = DraftRates()
        self._rates.note(path, rates)
        lookup = guide = prediction = None
        if message.pacing == Pacing.FREE:
            guide = guide_of(self._engine.grammars, asked.sampling)
            lookup = PromptLookup((*self._usual(asked.sampling), *asked.prompt, *message.committed))
            prediction = self._predicted(message)
        numerics = self._engine.numerics
        return VerifierRequest(
            channel,
            message.number,
            asked,
            KvState(sequence, scope),
            list(message.committed),
            pacing=Pacing(message.pacing),
            authors=len(message.authors),
            admission=next(self._admissions),
            # With the same bits in every pass, rounding decides nothing here.
            near_tie=0.0 if numerics.endswith(DETERMINISTIC) else rounding_of(numerics).near_tie,
            drafters=message.authors,
            user_name=_user_of(channel, message).name,
            lookup=lookup,
            guide=guide,
            prediction=prediction,
            account=SpeculationAccount(rates),
        )

    def _predicted(self, message: Open) -> Prediction | None:
        """The client's prediction of the output, advanced past the committed tokens."""
        tokens = message.prediction or ()
        # The client cannot know the vocabulary, so an invalid prediction does not fail the request.
        if not tokens or max(tokens) >= self._engine.vocab_tokens:
            return None
        prediction = Prediction(tokens)
        prediction.follow(message.committed)
        return prediction

    def _usual(self, sampling: Sampling) -> tuple[int, ...]:
        """Sample tokens of text under this constraint, for drafts before there is text to copy."""
        grammars, constraint = self._engine.grammars, sampling.constraint
        is_json = constraint is not None and constraint.kind == ConstraintKind.SCHEMA
        return grammars.usual_json if grammars is not None and is_json else ()

    def _coordinate(self, request: VerifierRequest, message: Delegate) -> None:
        """Coordinate a request by its client's mandate, or decline."""
        try:
            if self._coordinator is None:
                raise PeerError(ErrorCode.UNSUPPORTED, "this verifier does not coordinate requests")
            self._coordinator.begin(
                request,
                message.mandate,
                attach=self._attach_here,
                opened=self._opened(request.number),
                progress=self.progress,
            )
        except PeerError as refusal:
            log_of(request).info("not coordinated here, %s", refusal.message)
            request.channel.post(Declined(request.number, refusal.message))

    def _attach_here(self, request: VerifierRequest, tree: Tree) -> None:
        """Attach drafts of a session that runs here."""
        if request in self._requests:
            self._attach(request, tree)
            self._loop.wake()

    def _attach(self, request: VerifierRequest, message: Tree) -> None:
        """Attach drafts to the request's tree; fail it if the message is inconsistent."""
        if len(message.authors) != len(message.nodes) or max(message.authors, default=0) > request.authors:
            self._loop.fail(request, PeerError(ErrorCode.MALFORMED, "a tree's authors do not fit its nodes"))
            return
        # The client cannot know the vocabulary, so a drafter's invalid tokens do not fail the request.
        if max(message.nodes.tokens, default=0) < self._engine.vocab_tokens:
            self.counts.received_nodes += len(message.nodes)
            request.tree.attach(message.base, message.position, message.nodes, list(message.authors))


def _user_of(channel: Channel, message: Open) -> User:
    """The user behind a client's request, by the client's cache scope."""
    return User(channel.peer_id, (message.cache_scope or b"")[:USER_BYTES])


def _shutting_down() -> PeerError:
    return PeerError(ErrorCode.SHUTTING_DOWN, "the verifier is shutting down", RETRY_AFTER_S)
