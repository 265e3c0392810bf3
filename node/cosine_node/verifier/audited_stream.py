"""A stream that another verifier signed, replayed here: fed like a prompt and compared at each position. Pure.

The output is a function of the request, so one prefill of prompt and output shows at every position which token
this target chooses there (docs/design.md; in the manner of Token-DiFR, arXiv 2511.20621).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from cosine_node.engine.base import Choice, Row
from cosine_node.verifier.request import RequestStage, ServedRequest
from cosine_p2p.trust.audit_rule import is_near_tie
from cosine_protocol.digests import roll_digest
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_AUDIT_FINDINGS, MAX_SCORE_GAP
from cosine_protocol.messages import AskAudit, Audited, AuditFinding, AuditVerdict, Message
from cosine_protocol.statements import sign_verdict

SCORED_TOKENS: Final = 64
"""Bounds a pass: positions of one audit whose scores it computes. A quarter of what a token tree may have."""
CANDIDATES: Final = 8
"""A choice: beyond so many tokens a gap need not be exact, for it is wide."""


@dataclass(slots=True, eq=False, kw_only=True)
class AuditedStream(ServedRequest):
    """A request that commits nothing: what `claim` holds is fed, and what the target chooses there compared.

    Its `output` is the author's, of which the author signed the positions from `own_from` on as its own. The last
    token is only compared, so it is fed like one that is recomputed. All of it is computed anew if its pages are
    taken.
    """

    claim: AskAudit
    own_from: int
    stage: RequestStage = RequestStage.RECOMPUTE
    equal: int = 0
    near_ties: list[AuditFinding] = field(default_factory=list)
    different: list[AuditFinding] = field(default_factory=list)

    gives_way: ClassVar[bool] = True

    def post(self, message: Message) -> bool:
        return self.channel.post(message)

    @property
    def is_compared(self) -> bool:
        """True once every position has been."""
        return not self.unfed_tokens

    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds the next known tokens: up to the first to be compared, from there a few at a time."""
        fed, known = self.kv.fed_tokens, self.known_tokens
        unscored = len(self.request.prompt) - 1 + self.own_from - fed
        if unscored > 0:
            chunk = known[fed : fed + min(tokens, unscored)]
            return Row.chain(self.kv.sequence, chunk, scored_from=len(chunk))
        chunk = known[fed : fed + min(tokens, SCORED_TOKENS)]
        return replace(Row.chain(self.kv.sequence, chunk), candidates=CANDIDATES)

    def compare(self, choices: Sequence[Choice]) -> None:
        """Take in the target's choices after the tokens of the row that was just fed, and not counted yet."""
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
        self.near_ties, self.different = [], []

    def answer(self, auditor: Identity) -> Audited:
        """The signed verdict."""
        first_ones = (self.different + self.near_ties)[:MAX_AUDIT_FINDINGS]
        verdict = AuditVerdict(
            author=self.claim.author,
            first=self.own_from,
            tokens=len(self.output),
            digest=roll_digest(self.d_0, self.output),
            equal=self.equal,
            near_ties=len(self.near_ties),
            different=len(self.different),
            findings=tuple(sorted(first_ones, key=lambda finding: finding.position)),
        )
        return sign_verdict(auditor, verdict, number=self.number, d_0=self.d_0)


def gap_of(choice: Choice, committed: int) -> float:
    """The score of a choice less that of another token, or less than that where it is no candidate.

    A token that the sampler rules out is as far away as can be.
    """
    chances = dict(choice.candidates)
    if committed in chances:
        rival = chances[committed]
    elif len(chances) < CANDIDATES:
        return MAX_SCORE_GAP
    else:
        rival = min(chances.values())
    best = chances.get(choice.token, 1.0)
    return min(MAX_SCORE_GAP, max(choice.margin, math.log(best / rival))) if rival > 0 else MAX_SCORE_GAP
