"""Replays: what a verifier finds that audits a stream of some engine."""

from collections.abc import Sequence

from cosine_node.engine.base import Engine
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.request import KvState
from cosine_p2p.trust.audit_rule import near_tie_of
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.messages import AskAudit, AuditVerdict, Transcript
from cosine_protocol.request import Request
from cosine_protocol.statements import open_verdict, sign_transcript
from tests.node.peers import SERVER
from tests.node.verifier.test_memory import NoChannel


def claim_of(request: Request, tokens: Sequence[int], *, first: int = 0) -> AskAudit:
    """A stream as `SERVER` signs it."""
    d_0 = request_digest(request)
    transcript = Transcript(first, len(tokens), roll_digest(d_0, tokens))
    return AskAudit(3, request, tuple(tokens), SERVER.peer_id, sign_transcript(SERVER, transcript, d_0=d_0))


def audited_stream(engine: Engine, claim: AskAudit, *, first: int = 0) -> AuditedStream:
    """A claim as a verifier begins to replay it."""
    request = claim.request
    sequence = engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt))
    return AuditedStream(
        NoChannel(),
        claim.number,
        request,
        KvState(sequence),
        list(claim.tokens),
        near_tie=near_tie_of(engine.numerics),
        claim=claim,
        own_from=first,
    )


def feed(engine: Engine, stream: AuditedStream, tokens: int) -> None:
    """One pass over at most so many tokens."""
    row = stream.prefill_row(tokens)
    [result] = engine.forward([row])
    assert result.error is None
    engine.keep(row.sequence, row.nodes)
    stream.compare(result.choices)
    stream.note_fed(len(row.tokens))


def verdict_on(engine: Engine, request: Request, tokens: Sequence[int]) -> AuditVerdict:
    """The verdict of a verifier with this engine about a stream."""
    claim = claim_of(request, tokens)
    stream = audited_stream(engine, claim)
    while not stream.is_compared:
        feed(engine, stream, 512)
    engine.release(stream.kv.sequence)
    return open_verdict(stream.answer(SERVER), auditor=SERVER.peer_id, claim=claim)
