"""Checks of proofs: the digests and signatures in the statements of verifiers and auditors about one text."""

from collections.abc import Sequence
from typing import Any

from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, OpenedEvidence
from cosine_protocol.codec import decode_body
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.messages import Transcript

Json = dict[str, Any]


def checked_proof(pieces: Sequence[Evidence]) -> Json:
    """Return the result of `POST /v1/proofs` for at least one piece. Blocks.

    Raises `RemoteProtocolError` if a piece is invalid or belongs to another request than the first.
    """
    opened = [piece.open() for piece in pieces]
    digest = request_digest(opened[0].claim.request)
    if any(request_digest(each.claim.request) != digest for each in opened):
        raise MalformedMessage("its parts are of different requests")
    verdicts = sum(len(each.verdicts) for each in opened)
    return {
        "state": max((each.state for each in opened), key=list(AuditState).index),
        "signatures": len(pieces) + verdicts,
        "parts": [_part(*each, digest) for each in zip(pieces, opened, strict=True)],
    }


def _part(piece: Evidence, opened: OpenedEvidence, digest: bytes) -> Json:
    claim = opened.claim
    request = claim.request
    return {
        "author": claim.author,
        "digest": digest.hex(),
        "prompt_tokens": len(request.prompt),
        # A string, as many JSON readers round 64-bit numbers.
        "seed": str(request.sampling.seed),
        "temperature": request.sampling.temperature,
        "numerics": request.numerics,
        "first": decode_body(Transcript, claim.transcript.body).first,
        "tokens": list(claim.tokens),
        "judgements": [
            {
                "auditor": statement.auditor,
                "accuses": accuses(verdict, request),
                "equal": verdict.equal,
                "near_ties": verdict.near_ties,
                "different": verdict.different,
            }
            for statement, verdict in zip(piece.statements, opened.verdicts, strict=True)
        ],
    }
