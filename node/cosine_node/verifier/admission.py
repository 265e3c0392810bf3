"""Whether a verifier can serve a request at all, whatever its load."""

from collections.abc import Iterable, Iterator

from cosine_node.engine.base import Engine
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Request


def admitted(
    message: m.Open, client: str, *, engine: Engine, target_digest: bytes, tokenizer_digest: bytes
) -> Request:
    """The request of an `Open` from `client`. Raises `PeerError` with the reason if it cannot be served."""
    request = message.request
    for code, sentence in _objections(request, client, engine, target_digest, tokenizer_digest):
        raise PeerError(code, sentence)
    committed = message.committed
    if len(committed) >= request.max_new_tokens or any(token in request.eos for token in committed):
        raise PeerError(ErrorCode.BAD_COMMITTED, "the committed tokens already end the request")
    _check_vocabulary((*request.prompt, *committed), engine)
    return request


def _objections(
    request: Request, client: str, engine: Engine, target_digest: bytes, tokenizer_digest: bytes
) -> Iterator[tuple[ErrorCode, str]]:
    total = len(request.prompt) + request.max_new_tokens
    if request.client != client:
        yield ErrorCode.MALFORMED, "the request names another client"
    if request.target_digest != target_digest:
        yield ErrorCode.WRONG_TARGET, "another target is served"
    if request.tokenizer_digest != tokenizer_digest:
        yield ErrorCode.WRONG_TOKENIZER, "the tokenizer digest differs from the target's"
    if request.numerics != engine.numerics:
        yield ErrorCode.UNSUPPORTED, f"the target runs in {engine.numerics}, not {request.numerics}"
    if not request.prompt:
        yield ErrorCode.UNSUPPORTED, "the prompt is empty"
    if total > engine.context_tokens:
        sentence = f"prompt and output need {total} tokens, the context has {engine.context_tokens}"
        yield ErrorCode.PROMPT_TOO_LONG, sentence


def _check_vocabulary(tokens: Iterable[int], engine: Engine) -> None:
    if max(tokens) >= engine.vocab_tokens:
        raise PeerError(ErrorCode.WRONG_TOKENIZER, "a token id lies outside the target's vocabulary")
