"""Local replay of one stream with the target's weights, for an audit without a network."""

from dataclasses import dataclass

from cosine_node.engine.base import Engine
from cosine_node.verifier.admission import VerifierConfig, check_claim
from cosine_node.verifier.audits import AuditedStream
from cosine_node.verifier.scheduler import MOST_TOKENS
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.messages import AskAudit, AuditVerdict, Message


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
