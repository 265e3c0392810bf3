"""The verifier service: it accepts streams, gives requests a place, and runs the step loop."""

from collections.abc import Callable
from functools import partial
from itertools import count

from cosine_engine.constraints.grammars import guide_of
from cosine_engine.curve import break_even
from cosine_node.chains.chain import StageChain
from cosine_node.passes.counts import VerifierCounts
from cosine_node.passes.runner import ServedEngine
from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig, admitted
from cosine_node.verifier.audits import AuditService
from cosine_node.verifier.batch import NodeSelection, PassBatch, log_of
from cosine_node.verifier.chain_loop import ChainLoop
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.costs import ChainCosts, PassCosts
from cosine_node.verifier.free_drafts import FreeDrafts
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.intake import RequestIntake, number_in_use, shutting_down
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.served_request import KvState
from cosine_node.verifier.speculation import DraftRates, SpeculationAccount
from cosine_node.verifier.step_loop import StepLoop
from cosine_p2p.fair_places import FairQueue, Holder, User, whom_to_evict
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
from cosine_protocol.request import ConstraintKind
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


class VerifierService(RequestIntake[Open]):
    """Serves `/cosine/verify` by a step loop, `run`, and `/cosine/audit` in the same passes.

    Without a `coordinator` mandates are declined. With a `chain` the model runs on stages. Audits about the known
    verifiers `knows` go first. The laboratory compares the `selection` of draft nodes with others.
    """

    waits_s = RETRY_AFTER_S

    def __init__(
        self,
        served: ServedEngine,
        *,
        identity: Identity,
        config: VerifierConfig,
        home: HomeDrafter | None = None,
        coordinator: RequestCoordinator | None = None,
        chain: StageChain | None = None,
        selection: NodeSelection | None = None,
        knows: Callable[[str], bool] = lambda author: False,
    ) -> None:
        self._served = served
        self._identity = identity
        self._chain = chain
        self._home = home
        self._coordinator = coordinator
        counts, engine, curve = VerifierCounts(), served.engine, served.curve
        costs = PassCosts(curve, most_tokens=config.budget_tokens)
        if chain is not None:
            costs = ChainCosts(curve, chain.pace, most_tokens=config.budget_tokens)
        batch = PassBatch(engine, costs, counts, selection=selection)
        make: Callable[..., StepLoop] = StepLoop if chain is None else partial(ChainLoop, chain=chain)
        loop = make(
            batch,
            engine=engine,
            runner=served.runner,
            counts=counts,
            wait_for_work=served.wait_for_work,
            home=home,
            on_end=self._give_places,
        )
        super().__init__(loop, config)
        self.progress = loop.progress
        self.audits = AuditService(loop, config, identity, knows=knows)
        self._engine = engine
        self._costs = costs
        self._reads = serving_budget(places=config.max_requests)
        self._admissions = count()
        self._is_resting = False
        self._rates: Remembered[TrialPath, DraftRates] = Remembered(MAX_TRIALS)

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
        return tuple(self._loop.stages[:MAX_NAMED_STAGES])

    @property
    def plain_pass_s(self) -> float:
        """The time of a one-token pass by recent passes; over stages the time of a whole traversal."""
        return self._costs.curve.seconds(1) if self._chain is None else self._served.pass_s

    @property
    def break_even(self) -> int | None:
        """The permille of remote drafts that must be accepted to pay, next to home drafts; None over stages."""
        if self._chain is not None:
            return None
        curve = self._costs.curve
        beside = 1.0 if self._home is None else self._home.speedup(curve)
        return round(1000 * break_even(curve, beside=beside))

    async def start(self, transport: Transport) -> None:
        """Begin to accept streams."""
        await transport.serve(VERIFY, self.handle)
        await transport.serve(AUDIT, self.audits.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream, and cancel its requests when it ends."""
        self.counts.streams += 1
        try:
            await serve_channel(
                stream, VERIFY, self._receive, on_end=self.leave, progress=self.progress, budget=self._reads
            )
        finally:
            self.counts.streams -= 1

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._loop.turn()
        finally:
            self._loop.close()
            if self._coordinator is not None:
                await self._coordinator.close()

    def _give_places(self) -> None:
        """Give free places to requests that wait, and the rest to audits."""
        self.serve_waiting()
        self.audits.serve_waiting()

    def rest(self, is_resting: bool) -> None:
        """Refuse new requests while `is_resting`; the present ones continue."""
        self._is_resting = is_resting

    async def drain(self) -> None:
        """Refuse new requests, and return when the present ones are done."""
        self.refuse_all()
        self.audits.refuse_all()
        self._loop.is_idle.clear()
        self._loop.wake()
        await self._loop.is_idle.wait()

    def _receive(self, channel: Channel, message: Message) -> None:
        match message:
            case Open():
                self.ask(channel, message)
            case Tree(number) | Delegate(number) | Revoke(number) | Cancel(number):
                request = self._requests.get(channel, number)
                if isinstance(request, VerifierRequest):
                    self._act(request, message)
                elif isinstance(message, Delegate):
                    channel.post(Declined(number, "the request has no place here yet"))
                elif isinstance(message, Cancel):
                    self.cancel(channel, number)
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

    def _check(self, channel: Channel, asked: Open) -> None:
        request = admitted(asked, channel.peer_id, engine=self._engine, config=self._config)
        if self._is_draining:
            raise shutting_down()
        if self._is_resting:
            raise PeerError(ErrorCode.OVERLOADED, "the verifier rests now", RETRY_AFTER_S)
        tokens = len(request.prompt) + request.max_new_tokens
        if tokens > self.capacity_tokens:
            sentence = f"the request needs room for {tokens} tokens, the verifier has {self.capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        if self.waiting and len(request.prompt) > self._engine.free_tokens:
            raise PeerError(ErrorCode.OVERLOADED, "other requests wait for memory already", RETRY_AFTER_S)
        if self._requests.get(channel, asked.number) is not None:
            raise number_in_use()

    @property
    def _has_place(self) -> bool:
        return len(self._requests) < self._config.max_requests

    def _make_room(self, user: User) -> None:
        """If all places are taken, evict an audit, or a request of a user with more places than this one."""
        if self._has_place:
            return
        served = list(self._requests)
        holders = [Holder(request.user, request.admission, is_idle=request.gives_way) for request in served]
        if (index := whom_to_evict(user, holders)) is not None:
            self._loop.fail(served[index], self._no_place())

    def _line_of(self, user: User, asked: Open) -> FairQueue[tuple[Channel, Open]] | None:
        """The line, for a client with fewer places than its share, and such a user of the client."""
        held = [request.user for request in self._requests]
        clients, users = [one.client for one in held], [one for one in held if one.client == user.client]
        lacks_places = len(users) < self._config.max_requests / len({user.client, *clients}) or users.count(
            user
        ) < len(users) / len({user, *users})
        return self._lines[0] if lacks_places else None

    def _no_place(self) -> PeerError:
        return PeerError(ErrorCode.OVERLOADED, f"all {self._config.max_requests} places are taken", RETRY_AFTER_S)

    def _user_of(self, channel: Channel, asked: Open) -> User:
        """The user behind a client's request, by the client's cache scope."""
        return User(channel.peer_id, (asked.cache_scope or b"")[:USER_BYTES])

    def _begin(self, channel: Channel, asked: Open) -> None:
        request = self.request_of(channel, asked)
        self._requests.add(request)
        self._lines[0].note_given(request.user, len(asked.request.prompt) + asked.request.max_new_tokens)
        self.counts.opened += 1
        log_of(request).info("opened, %d prompt tokens", len(asked.request.prompt))
        channel.post(self._opened(asked.number))

    def _opened(self, number: int) -> Opened:
        # Requests share passes, so their load must not count against a client's drafts.
        pass_s = self._costs.curve.seconds(len(self._requests)) if self._chain is None else self._served.pass_s
        return Opened(number, round(1e6 * pass_s), self.break_even)

    def request_of(self, channel: Channel, asked: Open) -> VerifierRequest:
        """A new request with an empty sequence."""
        request, engine = asked.request, self._engine
        sampling = request.sampling
        # The empty scope is shared by all clients; a client's own scope is its peer id, which is never empty.
        scope = "" if self._config.shares_prefixes else channel.peer_id
        if asked.cache_scope is not None:
            scope = f"{scope} {asked.cache_scope.hex()}"
        sequence = engine.open(sampling=sampling, prompt_tokens=len(request.prompt), scope=scope)
        path = TrialPath.of(channel.peer_id, sampling.temperature)
        if (rates := self._rates.get(path)) is None:
            rates = DraftRates()
        self._rates.note(path, rates)
        return VerifierRequest(
            channel,
            asked.number,
            request,
            KvState(sequence, scope),
            list(asked.committed),
            signer=self._identity,
            admission=next(self._admissions),
            # With the same bits in every pass, rounding decides nothing here.
            near_tie=0.0 if engine.numerics.endswith(DETERMINISTIC) else rounding_of(engine.numerics).near_tie,
            user_name=self._user_of(channel, asked).name,
            pacing=Pacing(asked.pacing),
            drafters=asked.authors,
            free=self._free_drafts(asked) if asked.pacing == Pacing.FREE else None,
            account=SpeculationAccount(rates),
        )

    def _free_drafts(self, asked: Open) -> FreeDrafts:
        """The drafts that need no model, at the end of the committed tokens."""
        grammars, sampling = self._engine.grammars, asked.request.sampling
        text = (*asked.request.prompt, *asked.committed)
        if grammars is not None and sampling.constraint and sampling.constraint.kind == ConstraintKind.SCHEMA:
            # Before there is text to copy from.
            text = (*grammars.usual_json, *text)
        tokens, prediction = asked.prediction or (), None
        # The client cannot know the vocabulary, so an invalid prediction does not fail the request.
        if tokens and max(tokens) < self._engine.vocab_tokens:
            prediction = Prediction(tokens)
            prediction.follow(asked.committed)
        return FreeDrafts(text, guide=guide_of(grammars, sampling), prediction=prediction)

    def _coordinate(self, request: VerifierRequest, message: Delegate) -> None:
        """Coordinate a request by its client's mandate, or decline."""
        try:
            if self._coordinator is None:
                raise PeerError(ErrorCode.UNSUPPORTED, "this verifier does not coordinate requests")
            self._coordinator.begin(
                request,
                message.mandate,
                attach=self._attach,
                opened=self._opened(request.number),
                progress=self.progress,
            )
        except PeerError as refusal:
            log_of(request).info("not coordinated here, %s", refusal.message)
            request.channel.post(Declined(request.number, refusal.message))

    def _attach(self, request: VerifierRequest, message: Tree) -> None:
        """Attach drafts to the tree of a request that is still served; fail it if the message is inconsistent."""
        if request not in self._requests:
            return
        if len(message.authors) != len(message.nodes) or max(message.authors, default=0) > request.authors:
            self._loop.fail(request, PeerError(ErrorCode.MALFORMED, "a tree's authors do not fit its nodes"))
            return
        # The client cannot know the vocabulary, so a drafter's invalid tokens do not fail the request.
        if max(message.nodes.tokens, default=0) < self._engine.vocab_tokens:
            self.counts.received_nodes += len(message.nodes)
            request.tree.attach(message.base, message.position, message.nodes, list(message.authors))
            self._loop.wake()
