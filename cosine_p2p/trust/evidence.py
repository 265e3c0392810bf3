"""Verifiable evidence: a verifier's signed claim, and auditors' signed verdicts on it."""

import base64
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.audit_rule import AuditState, accuses, state_of
from cosine_p2p.trust.voices import Opinion, Poll
from cosine_protocol.audit import AskAudit, Audited, AuditVerdict, open_claim, open_verdict
from cosine_protocol.codec import decode, encode
from cosine_protocol.errors import MalformedMessage, RemoteProtocolError

MAX_PIECES: Final = 64  # Bounds the convictions that a client remembers; the oldest are forgotten first.
MAX_FILE_BYTES: Final = 4 << 20  # Bounds the file: three of the longest streams, or 64 of some thousand tokens.


@dataclass(frozen=True, slots=True)
class Statement:
    """An auditor's signed answer, an `Audited` message in base64. `place`: the observed address range."""

    auditor: str
    answer: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class OpenedEvidence:
    """Evidence with valid signatures, and the joint result of its auditors."""

    claim: AskAudit
    verdicts: tuple[AuditVerdict, ...]
    state: AuditState


@dataclass(frozen=True, slots=True)
class Evidence:
    """A verifier's claim, an `AskAudit` message in base64 that contains the prompt, and auditors' statements."""

    claim: str
    statements: tuple[Statement, ...] = ()

    @classmethod
    def of(cls, claim: AskAudit) -> "Evidence":
        return cls(_written(claim))

    def stated(self, auditor: str, answer: Audited, *, place: str = "") -> "Evidence":
        return replace(self, statements=(*self.statements, Statement(auditor, _written(answer), place)))

    def open(self) -> OpenedEvidence:
        """Check all signatures, and that all are by different peers. Raises `RemoteProtocolError`."""
        claim = read_message(self.claim)
        if not isinstance(claim, AskAudit):
            raise MalformedMessage("the claim is another message")
        open_claim(claim)
        peers = [claim.author, *(statement.auditor for statement in self.statements)]
        if len(set(peers)) < len(peers):
            raise MalformedMessage("a verifier cannot speak twice, or about itself")
        verdicts = []
        for statement in self.statements:
            answer = read_message(statement.answer)
            if not isinstance(answer, Audited):
                raise MalformedMessage("a statement is another message")
            verdicts.append(open_verdict(answer, auditor=statement.auditor, claim=claim))
        poll = Poll.of(
            [
                Opinion(
                    statement.auditor,
                    accuses(verdict, claim.request),
                    frozenset(verdict.stages or ()),
                    statement.place,
                )
                for statement, verdict in zip(self.statements, verdicts, strict=True)
            ],
            author={claim.author},
        )
        return OpenedEvidence(claim, tuple(verdicts), state_of(poll))


def _written(message: AskAudit | Audited) -> str:
    return base64.b64encode(encode(message)).decode("ascii")


def read_message(text: str) -> object:
    """Decode a message in base64. Raises `MalformedMessage`."""
    try:
        return decode(base64.b64decode(text, validate=True))
    except ValueError:
        raise MalformedMessage("not base64") from None


def evidence_of_json(values: Any) -> tuple[Evidence, ...]:
    """Read the pieces of evidence in a JSON list, without invalid ones."""
    pieces = []
    for value in values if isinstance(values, list) else ():
        match value:
            case {"claim": str(claim), "statements": list(statements)}:
                said = [
                    Statement(each["auditor"], each["answer"], str(each.get("place", "")))
                    for each in statements
                    if isinstance(each, dict)
                    and isinstance(each.get("auditor"), str)
                    and isinstance(each.get("answer"), str)
                ]
                pieces.append(Evidence(claim, tuple(said)))
    return tuple(pieces)


class EvidenceFile:
    """Evidence against verifiers in the state folder. A missing, broken or too large file counts as empty."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = StateFile("evidence.json", max_bytes=MAX_FILE_BYTES, file=file)

    @property
    def path(self) -> Path:
        return self._file.path

    def read(self) -> tuple[Evidence, ...]:
        return evidence_of_json(self._file.read().get("evidence"))

    def add(self, piece: Evidence) -> None:
        """Add a piece; the oldest are removed if there are too many."""
        written = [asdict(each) for each in (*self.read(), piece)[-MAX_PIECES:]]
        while len(json.dumps({"evidence": written})) > MAX_FILE_BYTES:
            written.pop(0)
        self._file.write({"evidence": written})

    def convicted(self) -> frozenset[str]:
        found = set()
        for piece in self.read():
            try:
                opened = piece.open()
            except RemoteProtocolError:
                continue
            if opened.state is AuditState.CONVICTED:
                found.add(opened.claim.author)
        return frozenset(found)
