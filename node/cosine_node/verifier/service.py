"""The verifier's shell: streams in, requests admitted and given to the step loop."""

import logging
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from cosine_node.counts import VerifierCounts
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import CostCurve
from cosine_node.runner import Runner
from cosine_node.verifier.admission import admitted
from cosine_node.verifier.policy import Policy
from cosine_node.verifier.prompt_lookup import PromptLookup
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.scheduler import pass_budget_tokens
from cosine_node.verifier.served import Served, ServedRequests
from cosine_node.verifier.step_loop import RETRY_AFTER_S, StepLoop
from cosine_p2p.channel import Channel, StepCounts, serve_channel
from cosine_p2p.request_log import PEER_LETTERS
from cosine_p2p.transport.base import Stream, Transport
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import VERIFY

LOG = logging.getLogger(__name__)
EVERYBODY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig:
    """What a verifier serves and how much of it. Without `budget_tokens` the cost curve says how long a pass is.

    Requests of one client share the pages of equal prefixes, with `shares_prefixes` those of different clients too.
    """

    target_digest: bytes
    tokenizer_digest: bytes
    max_requests: int = 16
    budget_tokens: int | None = None
    shares_prefixes: bool = False
    policy: Policy = field(default_factory=Policy)


class VerifierService:
    """Serves `/cosine/verify`. `run` is the step loop; cancel it to stop."""

    def __init__(
        self, *, engine: Engine, runner: Runner, curve: CostCurve, identity: Identity, config: VerifierConfig
    ) -> None:
        self._engine = engine
        self._curve = curve
        self._config = config
        self.capacity_tokens = engine.free_tokens
        self._served = ServedRequests()
        self._admissions = count()
        self._is_draining = False
        self.counts = VerifierCounts()
        self._loop = StepLoop(
            self._served,
            engine=engine,
            runner=runner,
            curve=curve,
            identity=identity,
            policy=config.policy,
            budget_tokens=config.budget_tokens or pass_budget_tokens(curve),
            counts=self.counts,
        )

    @property
    def requests(self) -> int:
        """Requests served now."""
        return len(self._served)

    @property
    def waiting(self) -> int:
        """Requests served now for which there has been no room yet."""
        return sum(bool(one.state.unfed_tokens) and not one.state.has_pages for one in self._served)

    @property
    def progress(self) -> StepCounts:
        """How far the step loop is."""
        return self._loop.progress

    async def start(self, transport: Transport) -> None:
        """Begin to accept streams."""
        await transport.serve(VERIFY, self.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream until it ends; its requests go with it."""
        self.counts.streams += 1
        try:
            await serve_channel(stream, VERIFY, self._receive, on_end=self._end, progress=self.progress)
        finally:
            self.counts.streams -= 1

    async def run(self) -> None:
        """The step loop."""
        await self._loop.run()

    async def drain(self) -> None:
        """Take no new request and return when the present ones are done."""
        self._is_draining = True
        self._loop.is_idle.clear()
        self._loop.wake()
        await self._loop.is_idle.wait()

    def _end(self, channel: Channel, reason: str) -> None:
        LOG.debug("client %s: %s", channel.peer_id, reason)
        for served in self._served:
            if served.channel is channel:
                served.state.is_cancelled = True
        self._loop.wake()

    def _receive(self, channel: Channel, message: m.Message) -> None:
        match message:
            case m.Open():
                self._open(channel, message)
            case m.Tree():
                self._attach(channel, message)
            case m.Verify():
                self._ask_pass(channel, message)
            case m.Cancel(number):
                if served := self._served.get(channel, number):
                    served.state.is_cancelled = True
            case _:
                channel.post(m.Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
        self._loop.wake()

    def _open(self, channel: Channel, message: m.Open) -> None:
        try:
            served = Served(channel, self._admit(message, channel.peer_id))
        except PeerError as refusal:
            self._refuse(channel, message.number, refusal)
            return
        if self._served.get(channel, message.number) is not None:
            self._loop.release(served.state.sequence)
            self._refuse(channel, message.number, PeerError(ErrorCode.MALFORMED, "this request number is in use"))
            return
        self._served.add(served)
        self.counts.opened += 1
        served.log.info("opened, %d prompt tokens", len(served.state.request.prompt))
        channel.post(m.Opened(message.number, round(1e6 * self._curve.seconds(1))))

    def _refuse(self, channel: Channel, number: int, refusal: PeerError) -> None:
        self.counts.refused[ErrorCode(refusal.code)] += 1
        LOG.info("client=%s: refused, %s", channel.peer_id[-PEER_LETTERS:], refusal.message)
        channel.post(m.Error(number, refusal.code, refusal.message, refusal.retry_after_s))

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
        self._check_memory(len(request.prompt) + request.max_new_tokens, len(request.prompt))
        scope = EVERYBODY if config.shares_prefixes else client
        looks_up = config.policy.looks_up and message.pacing == m.Pacing.FREE
        return VerifierRequest(
            message.number,
            request,
            m.Pacing(message.pacing),
            len(message.authors),
            self._engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt), scope=scope),
            list(message.committed),
            keeps_account=config.policy.keeps_account,
            lookup=PromptLookup((*request.prompt, *message.committed)) if looks_up else None,
            scope=scope,
            admission=next(self._admissions),
        )

    def _check_memory(self, tokens: int, prompt_tokens: int) -> None:
        """Refuse what never fits, and what would only wait behind others that wait for memory."""
        if tokens > self.capacity_tokens:
            sentence = f"the request needs room for {tokens} tokens, the verifier has {self.capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        is_short = any(served.state.unfed_tokens and not served.state.has_pages for served in self._served)
        if is_short and prompt_tokens > self._engine.free_tokens:
            raise PeerError(ErrorCode.OVERLOADED, "others wait for memory already", RETRY_AFTER_S)

    def _attach(self, channel: Channel, message: m.Tree | m.Verify) -> Served | None:
        served = self._served.get(channel, message.number)
        if served is None:
            return None
        state = served.state
        if len(message.authors) != len(message.nodes) or max(message.authors, default=0) > state.authors:
            self._loop.fail(served, PeerError(ErrorCode.MALFORMED, "a tree's authors do not fit its nodes"))
            return None
        # The client cannot know the vocabulary, so a drafter's nonsense must not cost it the request.
        if max(message.nodes.tokens, default=0) >= self._engine.vocab_tokens:
            return served
        self.counts.received_nodes += len(message.nodes)
        state.tree.attach(message.base, message.position, message.nodes, list(message.authors))
        return served

    def _ask_pass(self, channel: Channel, message: m.Verify) -> None:
        served = self._attach(channel, message)
        if served is None:
            return
        if not served.state.awaits_verify or message.base != served.state.tree.root.digest:
            self._loop.fail(served, PeerError(ErrorCode.MALFORMED, "a pass was asked for on another prefix"))
            return
        served.state.ask()
