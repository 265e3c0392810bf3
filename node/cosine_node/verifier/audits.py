"""Audits: streams that another verifier signed, replayed in the passes of this verifier's step loop.

The output is a function of the request, so one prefill of prompt and output shows which token this target chooses
at every position (docs/design.md; as in Token-DiFR, arXiv 2511.20621).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from cosine_engine.base import Choice, Engine, Row
from cosine_engine.choice_gap import CANDIDATES, gap_of
from cosine_node.passes.counts import VerifierCounts
from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig, check_claim
from cosine_node.verifier.preparations import Preparations
from cosine_node.verifier.request import SCORED_TOKENS, ClientChannel, KvState, RequestStage, ServedRequest
from cosine_node.verifier.scheduler import MOST_TOKENS
from cosine_node.verifier.served import ServedRequests, log_of
from cosine_p2p.fair_places import FairQueue, User
from cosine_p2p.session.auditing import ANSWER_S
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel, serving_budget
from cosine_p2p.trust.audit_rule import is_near_tie, rounding_of
from cosine_protocol.audit import (
    AUDIT,
    MAX_AUDIT_FINDINGS,
    MAX_SCORE_GAP,
    AskAudit,
    Audited,
    AuditFinding,
    AuditVerdict,
)
from cosine_protocol.codec import Message
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity, sign
from cosine_protocol.stage import MAX_NAMED_STAGES
from cosine_protocol.stream import Error
from cosine_protocol.verify import UNITS_PER_NAT, Likelihood

LOG = logging.getLogger(__name__)

MAX_AUDITS: Final = 2
"""Concurrent audits of all peers. With one, a long audit would delay all others; with four, each would take twice
as long, on twice the pages."""
TOKENS_PER_S: Final = 100.0
"""Audited tokens per second and peer. A client that audits 5 % of its output needs this at 2,000 tokens a
second."""
AHEAD_S: Final = 60.0
"""Seconds of a peer's rate that it may use at once, 6,000 tokens, since whole texts are audited."""
MAX_WAIT_S: Final = ANSWER_S / 2
"""Half of the time for which a client waits for an answer; the rest is for the audit."""

_Line = FairQueue[tuple[Channel, AskAudit]]


@dataclass(frozen=True, slots=True)
class ToldGap:
    """The largest difference in nats between a reported likelihood and the auditor's, over all of its numbers.

    `of_token` is the difference for the text's token, positive if it was reported likelier than it is.
    """

    widest: float
    of_token: float

    @classmethod
    def of(cls, told: Likelihood, own: Likelihood) -> "ToldGap":
        """Compare top tokens by token and by rank, since nearly equal ones may be in another order."""
        of_token = (own.surprisal - told.surprisal) / UNITS_PER_NAT
        known = {each.token: each.surprisal for each in own.top}
        gaps = [abs(of_token)]
        for each, ranked in zip(told.top, own.top, strict=False):
            gaps.append(abs(each.surprisal - ranked.surprisal) / UNITS_PER_NAT)
            # A token outside the auditor's top tokens is at most as likely as the last of them.
            at_least = known.get(each.token, max(each.surprisal, own.top[-1].surprisal))
            gaps.append(abs(each.surprisal - at_least) / UNITS_PER_NAT)
        if len(told.top) != len(own.top):
            gaps.append(MAX_SCORE_GAP)
        return cls(max(gaps), of_token)


@dataclass(slots=True, eq=False, kw_only=True)
class AuditedStream(ServedRequest):
    """A request that commits nothing: the tokens of `claim` are fed, and the target's choices compared with them.

    The author signed the positions of `output` from `own_from` on. The last token is only compared, never fed. A
    preemption restarts the audit.
    """

    claim: AskAudit
    own_from: int
    stage: RequestStage = RequestStage.RECOMPUTE
    equal: int = 0
    near_ties: list[AuditFinding] = field(default_factory=list)
    different: list[AuditFinding] = field(default_factory=list)
    gaps: list[ToldGap] = field(default_factory=list)

    gives_way: ClassVar[bool] = True

    @classmethod
    def of(cls, claim: AskAudit, channel: ClientChannel, *, engine: Engine, first: int) -> "AuditedStream":
        """A claim about the positions from `first` on, before its first pass."""
        request = claim.request
        return cls(
            channel,
            claim.number,
            request,
            KvState(engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt))),
            list(claim.tokens),
            admission=1 << 62,  # above every number of a request: audits are preempted first
            near_tie=rounding_of(engine.numerics).near_tie,
            claim=claim,
            own_from=first,
        )

    @property
    def is_compared(self) -> bool:
        """True once every position was compared."""
        return not self.unfed_tokens

    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds the next known tokens, at most `SCORED_TOKENS` once they are compared."""
        fed, known = self.kv.fed_tokens, self.known_tokens
        unscored = len(self.request.prompt) - 1 + self.own_from - fed
        told, asked = self.claim.likelihoods, self.request.logprobs
        tells_prompt = told is not None and asked is not None and asked.of_prompt and not self.own_from
        if unscored > 0:
            chunk = known[fed : fed + min(tokens, unscored, SCORED_TOKENS if tells_prompt else unscored)]
            row = Row.chain(self.kv.sequence, chunk, scored_from=len(chunk))
        else:
            chunk = known[fed : fed + min(tokens, SCORED_TOKENS)]
            row = replace(Row.chain(self.kv.sequence, chunk), candidates=CANDIDATES)
        if told is None or asked is None or (unscored > 0 and not tells_prompt):
            return row
        followers = (*self.request.prompt, *self.output)[fed + 1 : fed + 1 + len(chunk)]
        return replace(row, followers=followers, top=asked.top)

    def compare(self, choices: Sequence[Choice], likelihoods: Sequence[Likelihood] = ()) -> None:
        """Compare the target's choices after the tokens of a row; call before `note_fed`."""
        claimed = (self.claim.likelihoods or ())[len(self.gaps) :]
        self.gaps += [ToldGap.of(each, own) for each, own in zip(claimed, likelihoods, strict=False)]
        first = self.kv.fed_tokens + 1 - len(self.request.prompt)
        for position, choice in enumerate(choices, first):
            committed = self.output[position]
            if choice.token == committed:
                self.equal += 1
                continue
            finding = AuditFinding(position, choice.token, gap_of(choice, committed))
            is_near = is_near_tie(finding.gap, sampling=self.request.sampling, near_tie=self.near_tie)
            (self.near_ties if is_near else self.different).append(finding)

    def preempt(self, sequence: int) -> None:
        ServedRequest.preempt(self, sequence)
        self.equal = 0
        self.near_ties, self.different, self.gaps = [], [], []

    def answer(self, auditor: Identity, *, stages: Sequence[str] = ()) -> Audited:
        """The signed verdict, with the peer ids of the stages that computed it."""
        signed = sign(auditor, self.verdict(stages), digest=self.d_0)
        return Audited(self.number, signed.body, signed.signature)

    def verdict(self, stages: Sequence[str] = ()) -> AuditVerdict:
        """The findings so far, with at most `MAX_NAMED_STAGES` stages."""
        first_ones = (self.different + self.near_ties)[:MAX_AUDIT_FINDINGS]
        return AuditVerdict(
            author=self.claim.author,
            first=self.own_from,
            tokens=len(self.output),
            digest=roll_digest(self.d_0, self.output),
            equal=self.equal,
            near_ties=len(self.near_ties),
            different=len(self.different),
            findings=tuple(sorted(first_ones, key=lambda finding: finding.position)),
            widest_gap=max((gap.widest for gap in self.gaps), default=None),
            mean_gap=math.fsum(gap.of_token for gap in self.gaps) / len(self.gaps) if self.gaps else None,
            stages=tuple(stages[:MAX_NAMED_STAGES]) or None,
        )


class AuditService:
    """Serves `/cosine/audit`. Audits take free places among `requests`, which other requests may take back.

    Waiting claims about known verifiers (`knows`) go first, since anybody can sign a claim under a new key; of
    either kind the next is one of the client that was given least. `wake` is called after a change.
    """

    def __init__(
        self,
        requests: ServedRequests,
        *,
        engine: Engine,
        config: VerifierConfig,
        counts: VerifierCounts,
        wake: Callable[[], None],
        knows: Callable[[str], bool] = lambda author: False,
        why_not: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`why_not` returns the reason why no verdict is possible now, or None."""
        self._requests = requests
        self._engine = engine
        self._config = config
        self._counts = counts
        self._wake = wake
        self._knows = knows
        self._why_not = why_not
        self._about_known: _Line = FairQueue()
        self._about_others: _Line = FairQueue()
        self._lines = self._about_known, self._about_others
        # The time until which a peer has used its rate.
        self._paid_until_s: Remembered[str, float] = Remembered(1024)
        self._preparations = Preparations()
        self._reads = serving_budget()
        self._capacity_tokens = engine.free_tokens
        self._is_draining = False

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream, and cancel its audits when it ends."""
        await serve_channel(stream, AUDIT, self._receive, on_end=self._end, budget=self._reads)

    def _end(self, channel: Channel, reason: str) -> None:
        self._requests.cancel_all(channel)
        self._preparations.cancel_all(channel)
        for line in self._lines:
            line.take_where(lambda asked: asked[0] is channel)
        self._wake()

    def _receive(self, channel: Channel, message: Message) -> None:
        if not isinstance(message, AskAudit):
            channel.post(Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
            return
        self._ask(channel, message)

    def _ask(self, channel: Channel, message: AskAudit, failure: PeerError | None = None) -> None:
        """Begin an audit, once its constraint is compiled, or refuse it."""
        constraint, grammars = message.request.sampling.constraint, self._engine.grammars
        try:
            if failure is not None:
                raise failure
            if self._is_draining:
                raise _leaving()
            if (reason := self._why_not()) is not None:
                raise cannot_judge(reason)
            if grammars is not None and constraint is not None and grammars.fault(constraint) is None:
                then = partial(self._ask, channel, message)
                self._preparations.begin(channel, message.number, grammars, constraint, then)
            elif self._has_place:
                self._begin(channel, message)
            else:
                self._wait(channel, message)
        except PeerError as refusal:
            self._refuse(channel, message, refusal)

    def _refuse(self, channel: Channel, message: AskAudit, refusal: PeerError) -> None:
        self._counts.refused[ErrorCode(refusal.code)] += 1
        LOG.info("client=%s: no audit, %s", channel.peer_id[-PEER_LETTERS:], refusal.message)
        channel.post(Error(message.number, refusal.code, refusal.message, refusal.retry_after_s))

    @property
    def _has_place(self) -> bool:
        under_way = sum(isinstance(one, AuditedStream) for one in self._requests)
        return under_way < MAX_AUDITS and len(self._requests) < self._config.max_requests

    def _wait(self, channel: Channel, claim: AskAudit) -> None:
        """Queue a claim for a place. Raises `PeerError` if too many wait."""
        line = self._about_known if self._knows(claim.author) else self._about_others
        asked = channel, claim
        if not line.put(User(channel.peer_id), asked):
            raise _no_time(RETRY_AFTER_S)
        asyncio.get_running_loop().call_later(MAX_WAIT_S, self._end_waiting, line, asked)

    def serve_waiting(self) -> None:
        """Give free places to waiting claims."""
        while self._has_place and (asked := self._about_known.take() or self._about_others.take()):
            try:
                self._begin(*asked)
            except PeerError as refusal:
                self._refuse(*asked, refusal)

    def drain(self) -> None:
        """Refuse new and waiting claims."""
        self._is_draining = True
        for line in self._lines:
            for asked in line.take_where(lambda _: True):
                self._refuse(*asked, _leaving())

    def _end_waiting(self, line: _Line, asked: tuple[Channel, AskAudit]) -> None:
        """Refuse a claim that still waits."""
        for channel, claim in line.take_where(lambda one: one is asked):
            self._refuse(channel, claim, _no_time(RETRY_AFTER_S))

    def _begin(self, channel: Channel, claim: AskAudit) -> None:
        """Begin to replay a stream. Raises `PeerError` with the reason for a refusal."""
        now_s = _now_s()
        peer_id = channel.peer_id
        if self._requests.get(channel, claim.number) is not None:
            raise PeerError(ErrorCode.MALFORMED, "this request number is in use")
        paid_until_s = self._paid_until_s.get(peer_id) or now_s
        if (wait_s := paid_until_s - now_s - AHEAD_S) > 0:
            raise _no_time(wait_s)
        transcript = check_claim(claim, engine=self._engine, config=self._config)
        tokens = len(claim.request.prompt) + len(claim.tokens)
        if tokens > self._capacity_tokens:
            sentence = f"the audit needs room for {tokens} tokens, the verifier has {self._capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        # Charged when it begins, however it ends: its signature was checked.
        self._paid_until_s.note(peer_id, max(now_s, paid_until_s) + tokens / TOKENS_PER_S)
        for line in self._lines:
            line.note_given(User(peer_id), tokens)
        audited = AuditedStream.of(claim, channel, engine=self._engine, first=transcript.first)
        self._requests.add(audited)
        self._counts.opened += 1
        log_of(audited).info("an audit of %d tokens", len(claim.tokens) - transcript.first)
        self._wake()


def _no_time(wait_s: float) -> PeerError:
    return PeerError(ErrorCode.OVERLOADED, "no capacity for another audit now", wait_s)


def cannot_judge(reason: str) -> PeerError:
    return PeerError(ErrorCode.UNSUPPORTED, f"cannot judge: {reason}", RETRY_AFTER_S)


def _leaving() -> PeerError:
    return PeerError(ErrorCode.SHUTTING_DOWN, "the verifier is shutting down")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Nobody:
    """The client channel of a replay, which discards all messages."""

    peer_id: str

    def post(self, message: Message) -> bool:
        return False


def feed(engine: Engine, stream: AuditedStream, tokens: int) -> None:
    """Run one pass over at most `tokens` tokens of a stream. Raises the error of its row."""
    row = stream.prefill_row(tokens)
    [result] = engine.forward([row])
    if result.error is not None:
        raise result.error
    engine.keep(row.sequence, row.nodes)
    stream.compare(result.choices, result.likelihoods)
    stream.note_fed(len(row.tokens))


def verdict_on(claim: AskAudit, engine: Engine, config: VerifierConfig) -> AuditVerdict:
    """The verdict on a claim. Raises `PeerError` if this engine cannot judge it, and the error of a pass."""
    transcript = check_claim(claim, engine=engine, config=config)
    needed, room = len(claim.request.prompt) + len(claim.tokens), engine.free_tokens
    if needed > room:
        raise PeerError(ErrorCode.OUT_OF_MEMORY, f"the text needs room for {needed} tokens, and there is {room}")
    stream = AuditedStream.of(claim, Nobody(claim.request.client), engine=engine, first=transcript.first)
    try:
        while not stream.is_compared:
            feed(engine, stream, MOST_TOKENS)
    finally:
        engine.release(stream.kv.sequence)
    return stream.verdict()
