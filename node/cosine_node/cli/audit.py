"""`cosine-node audit`: have a stored text judged by other verifiers, or check stored evidence by its signatures."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_node.cli.asking import joining_once
from cosine_node.cli.options import ENTRANCE, AsJson, InitialPeers, several, takes_options
from cosine_node.terminal.interrupts import run_interruptibly
from cosine_node.terminal.printing import FAILURE_EXIT, json_safe, short_peer_id, show
from cosine_node.terminal.waiting import WaitingLine, telling_stages
from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_protocol.errors import RemoteProtocolError, UsageError

if TYPE_CHECKING:
    from cosine_p2p.client import Join, Swarm

MAX_FILE_BYTES: Final = 64 << 20
"""Bounds what is read: far more than the longest generation."""
WAIT_S: Final = 600.0
"""As long as a generation may take."""


WORDS: Final[Mapping[AuditState, str]] = {
    AuditState.UNANSWERED: "nobody has judged it",
    AuditState.PASSED: "most of its judges agree",
    AuditState.SUSPECTED: "one voice accuses, and there is no other",
    AuditState.DISPUTED: "its judges disagree",
    AuditState.CONVICTED: "most of its judges accuse",
}
"""What signatures prove: who says what. Anybody may judge, and who is believed is for the reader to say."""


@dataclass(frozen=True, slots=True)
class CheckedPiece:
    """One part of a text as a verifier signed it, and what others found; `problem` says why it proves nothing."""

    author: str
    tokens: int
    state: str
    said: tuple[str, ...] = ()
    problem: str = ""

    def sentence(self) -> str:
        """It for people."""
        if self.problem:
            return f"This proves nothing: {self.problem}."
        told = "".join(f"; {each}" for each in self.said)
        return (
            f"Verifier {short_peer_id(self.author)}, {self.tokens} tokens: {WORDS[AuditState(self.state)]}{told}."
        )


@takes_options
def audit(
    options: Annotated[ClientOptions, (*ENTRANCE, "trust")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="What `generate --json` wrote; else the evidence kept on this machine."
        ),
    ] = None,
    initial_peers: InitialPeers = None,
    offline: Annotated[
        bool, typer.Option("--offline", metavar="", help="Ask nobody: check signatures and what was found before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a text judged by verifiers other than its own, or check the evidence against one."""
    pieces = read_evidence(file)
    if not offline:
        join = joining_once(several(initial_peers), Access.of(options))
        pieces = run_interruptibly(_judged(pieces, join, options["trust"]))
    checked = [check(piece) for piece in pieces]
    if as_json:
        written = {"evidence": json_safe(pieces), "checked": json_safe(checked)}
        sys.stdout.write(json.dumps(written) + "\n")
    else:
        show(sys.stdout, "".join(f"{piece.sentence()}\n" for piece in checked))
    # Evidence is checked for whether it holds, a text for whether it is the target's.
    fine = {AuditState.PASSED} if not offline else set(AuditState)
    if any(piece.problem or piece.state not in fine for piece in checked):
        raise typer.Exit(FAILURE_EXIT)


def read_evidence(file: Path | None) -> tuple[Evidence, ...]:
    """The evidence in a result of `generate --json` or of this command, or in the state folder.

    Raises `UsageError` where there is none.
    """
    if file is None:
        kept = EvidenceFile()
        if pieces := kept.read():
            return pieces
        raise UsageError(f"No evidence is kept in {kept.path}; name a file that `generate --json` wrote.")
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{file} is too large for a result of `generate --json`.")
        value: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no result of `generate --json`: {error}.") from None
    outer = value if isinstance(value, dict) else {}
    inner = outer.get("audit")
    pieces = evidence_of_json((inner if isinstance(inner, dict) else outer).get("evidence"))
    if not pieces:
        raise UsageError(f"{file} holds nothing that a verifier signed; `generate --json` writes it.")
    return pieces


def check(piece: Evidence) -> CheckedPiece:
    """Check one piece by its signatures alone."""
    try:
        opened = piece.open()
    except RemoteProtocolError as error:
        return CheckedPiece("", 0, AuditState.UNANSWERED, problem=str(error))
    said = [
        f"{short_peer_id(statement.auditor)} {'accuses' if accuses(verdict, opened.claim.request) else 'agrees'}: "
        f"{verdict.equal} equal, {verdict.near_ties} near ties, {verdict.different} different"
        + ("" if verdict.widest_gap is None else f", log-probabilities off by {verdict.widest_gap:.2g} at most")
        for statement, verdict in zip(piece.statements, opened.verdicts, strict=True)
    ]
    return CheckedPiece(opened.claim.author, len(opened.claim.tokens), opened.state, tuple(said))


async def _judged(pieces: Sequence[Evidence], join: "Join", trust: Sequence[str]) -> tuple[Evidence, ...]:
    """The same claims with the statements of verifiers that are asked now."""
    line = WaitingLine(sys.stderr)
    async with telling_stages(line, lambda: "Looking for peers"):
        swarm = await join()
    try:
        async with telling_stages(line, lambda: "Asking other verifiers"):
            return await judged(swarm, pieces, trust)
    finally:
        line.end()
        await swarm.close()


async def judged(swarm: "Swarm", pieces: Sequence[Evidence], trust: Sequence[str]) -> tuple[Evidence, ...]:
    """Ask the verifiers of each claim's target in a swarm. A claim that does not hold is asked of nobody."""
    from cosine_p2p.session.auditing import Auditing
    from cosine_p2p.trust.peer_memory import PeerFailures
    from cosine_p2p.trust.standing import Standings

    auditing = Auditing(PeerFailures(), Standings(), file=EvidenceFile())
    auditing.join(swarm.transport)
    try:
        return await auditing.judged(pieces, swarm.directory, trust=trust, wait_s=WAIT_S)
    finally:
        await auditing.close()
