"""A stream that another verifier signed, replayed: the target's choices are compared with its tokens.

The output is a function of the request, so one prefill of prompt and output shows which token this target chooses
at every position (docs/design.md; as in Token-DiFR, arXiv 2511.20621).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cosine_engine.base import Choice, Engine, Row, RowResult
from cosine_engine.choice_gap import CANDIDATES, gap_of
from cosine_node.verifier.admission import VerifierConfig, check_claim
from cosine_node.verifier.costs import MOST_TOKENS
from cosine_node.verifier.served_request import (
    SCORED_TOKENS,
    ClientChannel,
    KvState,
    Outcome,
    PassShare,
    RequestEnd,
    RequestStage,
    ServedRequest,
)
from cosine_p2p.trust.audit_rule import is_near_tie, rounding_of
from cosine_protocol.audit import MAX_AUDIT_FINDINGS, MAX_SCORE_GAP, AskAudit, Audited, AuditFinding, AuditVerdict
from cosine_protocol.codec import Message
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity, sign
from cosine_protocol.stage import MAX_NAMED_STAGES
from cosine_protocol.stream import FinishReason
from cosine_protocol.verify import UNITS_PER_NAT, Likelihood


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

    The author signed the positions of `output` from `own_from` on; the `auditor` signs the verdict. The last token
    is only compared, never fed. A preemption restarts the audit.
    """

    claim: AskAudit
    own_from: int
    auditor: Identity | None = None
    stage: RequestStage = RequestStage.RECOMPUTE
    equal: int = 0
    near_ties: list[AuditFinding] = field(default_factory=list)
    different: list[AuditFinding] = field(default_factory=list)
    gaps: list[ToldGap] = field(default_factory=list)

    gives_way: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        claim: AskAudit,
        channel: ClientChannel,
        *,
        engine: Engine,
        first: int,
        auditor: Identity | None = None,
    ) -> "AuditedStream":
        """A claim about the positions from `first` on, before its first pass."""
        request = claim.request
        return cls(
            channel,
            claim.number,
            request,
            KvState(engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt))),
            list(claim.tokens),
            admission=1 << 62,  # Above every number of a request: audits are preempted first.
            near_tie=rounding_of(engine.numerics).near_tie,
            claim=claim,
            own_from=first,
            auditor=auditor,
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

    def take(self, row: Row, result: RowResult, share: PassShare | None = None) -> Outcome:
        """Compare the target's choices, and take the tokens into the prefix; done once all are compared."""
        self.awaits_choices = False
        self._compare(result.choices, result.likelihoods)
        self.note_fed(len(row.tokens))
        finish = FinishReason.LENGTH if self.is_compared else None
        return Outcome(row.nodes, known_tokens=len(row.tokens), finish=finish)

    def _compare(self, choices: Sequence[Choice], likelihoods: Sequence[Likelihood] = ()) -> None:
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

    def end(self, reason: FinishReason, stages: Sequence[str] = ()) -> RequestEnd:
        """End with the signed verdict, unless cancelled."""
        if reason is FinishReason.CANCELLED:
            return RequestEnd("cancelled", "before all tokens were compared")
        assert self.auditor is not None, "only what a client asked for ends so"
        signed = sign(self.auditor, self.verdict(stages), digest=self.d_0)
        audited = Audited(self.number, signed.body, signed.signature)
        return RequestEnd(
            "audited", f"{len(self.different)} tokens differ", audited, len(self.output) - self.own_from
        )

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
    engine.keep(row.sequence, stream.take(row, result).kept)


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
