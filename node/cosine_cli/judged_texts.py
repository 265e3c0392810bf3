"""Judges texts that verifiers signed, by their signatures and by other verifiers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import TYPE_CHECKING, Final

from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, EvidenceFile
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.audit import AuditVerdict
from cosine_protocol.errors import RemoteProtocolError
from cosine_terminal.printing import short_peer_id

if TYPE_CHECKING:
    from cosine_p2p.client import Swarm

WAIT_S: Final = 600.0
WORDS: Final[Mapping[AuditState, str]] = {
    AuditState.UNANSWERED: "not judged yet",
    AuditState.PASSED: "most of its judges agree",
    AuditState.SUSPECTED: "one judge accuses, and there is no other",
    AuditState.DISPUTED: "its judges disagree",
    AuditState.CONVICTED: "most of its judges accuse",
}
"""The judgement of others. Signatures prove who judged; the reader decides whom to believe."""
OWN_WORDS: Final[Mapping[AuditState, str]] = {
    AuditState.PASSED: "this machine would have written the same",
    AuditState.CONVICTED: "this machine would have written something else",
}


@dataclass(frozen=True, slots=True)
class CheckedPiece:
    """One signed part of a text, and its judgements.

    problem: The reason why it proves nothing. "" if it holds.
    is_own_word: True if this machine judged it with the target's weights.
    """

    author: str
    tokens: int
    state: str
    said: tuple[str, ...] = ()
    problem: str = ""
    is_own_word: bool = False

    def sentence(self) -> str:
        if self.problem:
            return f"This proves nothing: {self.problem}."
        told = "".join(f"; {each}" for each in self.said)
        words = OWN_WORDS if self.is_own_word else WORDS
        return (
            f"Verifier {short_peer_id(self.author)}, {self.tokens} tokens: {words[AuditState(self.state)]}{told}."
        )


def check(piece: Evidence, written: object = None) -> CheckedPiece:
    """Check signatures, and that `written`, the tokens of a text if they are a list, are those that were signed."""
    try:
        opened = piece.open()
    except RemoteProtocolError as error:
        return CheckedPiece("", 0, AuditState.UNANSWERED, problem=str(error))
    tokens, author = opened.claim.tokens, opened.claim.author
    if isinstance(written, list) and any(map(ne, written, tokens)):
        problem = "the tokens of the file are not those that the verifier signed"
        return CheckedPiece(author, len(tokens), opened.state, problem=problem)
    said = [
        f"{short_peer_id(statement.auditor)} {'accuses' if accuses(verdict, opened.claim.request) else 'agrees'}: "
        f"{counted(verdict)}"
        for statement, verdict in zip(piece.statements, opened.verdicts, strict=True)
    ]
    return CheckedPiece(author, len(tokens), opened.state, tuple(said))


def counted(verdict: AuditVerdict) -> str:
    counts = f"{verdict.equal} equal, {verdict.near_ties} near ties, {verdict.different} different"
    if verdict.widest_gap is None:
        return counts
    return f"{counts}, log-probabilities off by {verdict.widest_gap:.2g} at most"


async def judged(swarm: "Swarm", pieces: Sequence[Evidence], trust: Sequence[str]) -> tuple[Evidence, ...]:
    """Add the statements of a swarm's verifiers. Claims that do not hold are not sent."""
    from cosine_p2p.session.auditing import Auditing
    from cosine_p2p.trust.standing import Standings

    auditing = Auditing(swarm.transport, PeerFailures(), Standings(), file=EvidenceFile())
    try:
        return await auditing.judged(pieces, swarm.directory, trust=trust, wait_s=WAIT_S)
    finally:
        await auditing.close()
