"""The check that a verifier can serve a request at all, whatever its load. Pure."""

from cosine_node.engine.base import Engine
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Request


def admitted(
    message: m.Open, client: str, *, engine: Engine, target_digest: bytes, tokenizer_digest: bytes
) -> Request:
    """The request of an `Open` from `client`. Raises `PeerError` with the reason if it cannot be served."""
    request, committed = message.request, message.committed
    total = len(request.prompt) + request.max_new_tokens
    objections = (
        (request.client != client, ErrorCode.MALFORMED, "the request names another client"),
        (request.target_digest != target_digest, ErrorCode.WRONG_TARGET, "another target is served"),
        (
            request.tokenizer_digest != tokenizer_digest,
            ErrorCode.WRONG_TOKENIZER,
            "the tokenizer digest differs from the target's",
        ),
        (
            request.numerics != engine.numerics,
            ErrorCode.UNSUPPORTED,
            f"the target runs in {engine.numerics}, not {request.numerics}",
        ),
        (not request.prompt, ErrorCode.UNSUPPORTED, "the prompt is empty"),
        (
            total > engine.context_tokens,
            ErrorCode.PROMPT_TOO_LONG,
            f"prompt and output need {total} tokens, the context has {engine.context_tokens}",
        ),
    )
    for is_refused, code, sentence in objections:
        if is_refused:
            raise PeerError(code, sentence)
    if len(committed) >= request.max_new_tokens or any(token in request.eos for token in committed):
        raise PeerError(ErrorCode.BAD_COMMITTED, "the committed tokens already end the request")
    if max((*request.prompt, *committed)) >= engine.vocab_tokens:
        raise PeerError(ErrorCode.WRONG_TOKENIZER, "a token id lies outside the target's vocabulary")
    return request
