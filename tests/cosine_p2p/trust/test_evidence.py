"""Evidence holds by its signatures alone, survives being written and read, and fills no disk."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cosine_p2p.trust import evidence
from cosine_p2p.trust.evidence import MAX_PIECES, Evidence, EvidenceFile, Statement, evidence_of_json
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.messages import AskAudit, Audited, AuditFinding, AuditVerdict, Transcript
from cosine_protocol.statements import sign_transcript, sign_verdict
from tests.cosine_p2p.samples import identity_of
from tests.protocol.samples import request_of

AUTHOR = identity_of(1)
TOKENS = (3, 5, 8)


def claim_of(nonce: int = 0) -> AskAudit:
    request = request_of(nonce=nonce.to_bytes(16, "big"))
    d_0 = request_digest(request)
    transcript = Transcript(0, len(TOKENS), roll_digest(d_0, TOKENS))
    return AskAudit(0, request, TOKENS, AUTHOR.peer_id, sign_transcript(AUTHOR, transcript, d_0=d_0))


def answer_of(claim: AskAudit, auditor: int, *, different: int) -> Audited:
    d_0 = request_digest(claim.request)
    digest = roll_digest(d_0, TOKENS)
    findings = tuple(AuditFinding(position, 1, 1e6) for position in range(different))
    verdict = AuditVerdict(AUTHOR.peer_id, 0, 3, digest, 3 - different, 0, different, findings)
    return sign_verdict(identity_of(auditor), verdict, number=auditor, d_0=d_0)


def piece_of(*different: int, nonce: int = 0) -> Evidence:
    """A claim and verdicts with so many differences each."""
    claim = claim_of(nonce)
    piece = Evidence.of(claim)
    for auditor, count in enumerate(different, 2):
        piece = piece.stated(identity_of(auditor).peer_id, answer_of(claim, auditor, different=count))
    return piece


@pytest.mark.parametrize(
    ("different", "state"),
    [((), "unanswered"), ((0,), "passed"), ((3,), "suspected"), ((3, 0), "disputed"), ((3, 3), "convicted")],
)
def test_whoever_has_it_can_tell_what_was_found(different: tuple[int, ...], state: str) -> None:
    piece = piece_of(*different)
    assert evidence_of_json(json.loads(json.dumps([asdict(piece)]))) == (piece,)
    opened = piece.open()
    assert (opened.claim, opened.state) == (claim_of(), state)
    assert [verdict.different for verdict in opened.verdicts] == list(different)


HONEST = piece_of(3, 3)
FORGERIES = {
    "of another auditor": replace(
        HONEST, statements=(replace(HONEST.statements[0], auditor=identity_of(9).peer_id),)
    ),
    "about another text": replace(HONEST, claim=piece_of(nonce=5).claim),
    "said twice": replace(HONEST, statements=HONEST.statements[:1] * 2),
    "by the author": Evidence.of(claim_of()).stated(AUTHOR.peer_id, answer_of(claim_of(), 1, different=0)),
    "no base64": replace(HONEST, claim="§"),
    "no message": replace(HONEST, claim="AAAA"),
    "another message": replace(HONEST, claim=HONEST.statements[0].answer),
    "no answer": replace(HONEST, statements=(Statement(identity_of(2).peer_id, HONEST.claim),)),
}


@pytest.mark.parametrize("piece", FORGERIES.values(), ids=FORGERIES)
def test_what_is_forged_proves_nothing(piece: Evidence, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError):
        piece.open()
    file = EvidenceFile(tmp_path / "evidence.json")
    file.add(piece)
    assert file.convicted() == frozenset()


@pytest.mark.parametrize("value", [None, {}, [None], [{"claim": 1, "statements": []}], [{"claim": "x"}]])
def test_what_has_another_form_is_left_out(value: object) -> None:
    assert evidence_of_json(value) == ()


def test_a_file_keeps_convictions_for_the_next_run(tmp_path: Path) -> None:
    file = EvidenceFile(tmp_path / "state" / "evidence.json")
    assert file.read() == () and file.convicted() == frozenset()
    file.add(piece_of(3))
    assert file.convicted() == frozenset()
    file.add(piece_of(3, 3))
    assert EvidenceFile(file.path).read() == (piece_of(3), piece_of(3, 3))
    assert EvidenceFile(file.path).convicted() == {AUTHOR.peer_id}


def test_a_file_forgets_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = EvidenceFile(tmp_path / "evidence.json")
    pieces = [piece_of(nonce=number) for number in range(MAX_PIECES + 2)]
    for piece in pieces:
        file.add(piece)
    assert file.read() == tuple(pieces[2:])
    monkeypatch.setattr(evidence, "MAX_FILE_BYTES", 4000)
    file.add(pieces[0])
    kept = file.read()
    assert 0 < len(kept) < 10 and kept[-1] == pieces[0] and file.path.stat().st_size <= 4000
