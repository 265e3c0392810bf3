"""The requests that a drafter can follow. Pure."""

from cosine_node.engine.base import Engine
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError


def check_start(message: m.Start, engine: Engine, *, tokenizer_digest: bytes, is_in_use: bool) -> None:
    """Raise `PeerError` with the reason why a request cannot be followed; `is_in_use` is of its number."""
    request = message.request
    tokens = (*request.prompt, *message.committed)
    if not request.prompt:
        raise PeerError(ErrorCode.MALFORMED, "the request does not fit its stream")
    if request.tokenizer_digest != tokenizer_digest:
        raise PeerError(ErrorCode.WRONG_TOKENIZER, "the drafter has another tokenizer")
    if max(tokens) >= engine.vocab_tokens:
        raise PeerError(ErrorCode.WRONG_TOKENIZER, "a token id lies outside the drafter's vocabulary")
    if len(tokens) >= engine.context_tokens:
        raise PeerError(ErrorCode.PROMPT_TOO_LONG, "the prompt is longer than the drafter's context")
    if is_in_use:
        raise PeerError(ErrorCode.MALFORMED, "this request number is in use")
