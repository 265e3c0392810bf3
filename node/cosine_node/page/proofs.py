"""Checks of proofs: every digest and signature of what verifiers, judges and clients signed of one text."""

from collections.abc import Sequence
from typing import Any

from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, OpenedEvidence, read_message
from cosine_protocol.codec import decode_body
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.messages import Receipted, Transcript
from cosine_protocol.statements import read_receipt

Json = dict[str, Any]


def checked_proof(pieces: Sequence[Evidence], receipts: Sequence[str]) -> Json:
    """What a proof says, in the form of `POST /v1/proofs`. Blocks.

    `pieces` are one or more, `receipts` are `Receipted` messages in base64. Raises `RemoteProtocolError` where a
    part does not hold or is of another request than the first, or where a receipt is of another text.
    """
    opened = [piece.open() for piece in pieces]
    digest = request_digest(opened[0].claim.request)
    if any(request_digest(each.claim.request) != digest for each in opened):
        raise MalformedMessage("its parts are of different requests")
    verdicts = sum(len(each.verdicts) for each in opened)
    return {
        "state": max((each.state for each in opened), key=list(AuditState).index),
        "signatures": len(pieces) + verdicts + 2 * len(receipts),
        "parts": [_part(*each, digest) for each in zip(pieces, opened, strict=True)],
        "receipts": [_receipt(text, opened, digest) for text in receipts],
    }


def _part(piece: Evidence, opened: OpenedEvidence, digest: bytes) -> Json:
    claim = opened.claim
    request = claim.request
    return {
        "author": claim.author,
        "digest": digest.hex(),
        "prompt_tokens": len(request.prompt),
        # A number of 64 bits, which JSON readers round.
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


def _receipt(text: str, opened: Sequence[OpenedEvidence], digest: bytes) -> Json:
    message = read_message(text)
    if not isinstance(message, Receipted):
        raise MalformedMessage("a receipt is another message")
    read = read_receipt(message.receipt)
    read.check()
    request, earning = opened[0].claim.request, read.earning
    named = message.receipt.d_0, earning.client, earning.target_digest
    if named != (digest, request.client, request.target_digest) or read.verifier not in {
        each.claim.author for each in opened
    }:
        raise MalformedMessage("a receipt is for another text")
    return {
        "verifier": read.verifier,
        "client": read.client,
        "drafter": earning.drafter,
        "tokens": earning.tokens,
        "text_tokens": earning.text_tokens,
    }
