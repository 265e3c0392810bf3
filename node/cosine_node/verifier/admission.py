"""Checks that a verifier can serve a request or audit a stream, independent of its load. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.base import Engine
from cosine_protocol.audit import AskAudit, open_claim
from cosine_protocol.errors import ErrorCode, PeerError, RemoteProtocolError, UsageError
from cosine_protocol.request import Request
from cosine_protocol.verify import Open, Transcript, check_room

RETRY_AFTER_S: Final = 2.0
"""Time after which a refused client may retry: some thirty passes of 60 ms, in which sixteen requests write five
hundred tokens, so that one of them ends. With half of it more retries fail; with twice as much places stay empty.
An audit of a few hundred tokens takes about as long, compiling a constraint of 40 KB less."""
MAX_COORDINATED: Final = 8
"""A decision takes 0.3 ms of the event loop, so these take a few percent of it at 60 ms a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig:
    """The target that a verifier serves, and its limits. Default of `budget_tokens`: by the cost curve.

    Requests of one client and cache scope share the pages of equal prefixes, with `shares_prefixes` those of
    different clients too.
    """

    target_digest: bytes
    tokenizer_digest: bytes
    max_requests: int = 16
    budget_tokens: int | None = None
    shares_prefixes: bool = False


def admitted(message: Open, client: str, *, engine: Engine, config: VerifierConfig) -> Request:
    """The request of an `Open` from `client`. Raises `PeerError` with the reason if it cannot be served."""
    request, committed = message.request, message.committed
    if request.client != client:
        raise PeerError(ErrorCode.MALFORMED, "the request names another client")
    if request.numerics != engine.numerics:
        sentence = f"the target runs in {engine.numerics}, not {request.numerics}"
        raise PeerError(ErrorCode.UNSUPPORTED, sentence)
    _check(request, committed, output_tokens=request.max_new_tokens, engine=engine, config=config)
    if len(committed) >= request.max_new_tokens or any(token in request.eos for token in committed):
        raise PeerError(ErrorCode.BAD_COMMITTED, "the committed tokens already end the request")
    return request


def check_claim(claim: AskAudit, *, engine: Engine, config: VerifierConfig) -> Transcript:
    """The transcript of a stream to be audited, of any numerics. Raises `PeerError` if that is impossible here."""
    _check(claim.request, claim.tokens, output_tokens=len(claim.tokens), engine=engine, config=config)
    try:
        return open_claim(claim)
    except RemoteProtocolError as error:
        raise PeerError(ErrorCode.BAD_TRANSCRIPT, str(error)) from None


def _check(
    request: Request, output: Sequence[int], *, output_tokens: int, engine: Engine, config: VerifierConfig
) -> None:
    """Raise `PeerError` for another model, or a text beyond the context or vocabulary."""
    if request.target_digest != config.target_digest:
        raise PeerError(ErrorCode.WRONG_TARGET, "another target is served")
    if request.tokenizer_digest != config.tokenizer_digest:
        raise PeerError(ErrorCode.WRONG_TOKENIZER, "the tokenizer digest differs from the target's")
    if not request.prompt:
        raise PeerError(ErrorCode.UNSUPPORTED, "the prompt is empty")
    total = len(request.prompt) + output_tokens
    if total > engine.context_tokens:
        sentence = f"prompt and output need {total} tokens, the context has {engine.context_tokens}"
        raise PeerError(ErrorCode.PROMPT_TOO_LONG, sentence)
    _check_constraint(request, engine)
    _check_logprobs(request, engine, output_tokens=output_tokens)
    shaping = request.sampling.shaping
    # An end-of-text token may be known to the tokenizer without a row in the model.
    named = set(shaping.tokens).difference(shaping.held_back) if shaping else ()
    highest = max((*request.prompt, *output, *named))
    if highest >= engine.vocab_tokens:
        sentence = f"there is a token {highest}, and the target knows those below {engine.vocab_tokens}"
        raise PeerError(ErrorCode.WRONG_TOKENIZER, sentence)


def _check_logprobs(request: Request, engine: Engine, *, output_tokens: int) -> None:
    """Raise `PeerError` for log-probabilities that this engine does not return, or more than the limit."""
    asked = request.logprobs
    if asked is None:
        return
    if not engine.tells_likelihoods:
        raise PeerError(ErrorCode.UNSUPPORTED, "log-probabilities are not available here, nor over stages")
    try:
        check_room(
            prompt_tokens=len(request.prompt),
            new_tokens=output_tokens,
            top=asked.top,
            of_prompt=asked.of_prompt,
        )
    except UsageError as error:
        raise PeerError(ErrorCode.UNSUPPORTED, str(error)) from None


def _check_constraint(request: Request, engine: Engine) -> None:
    """Raise `PeerError` for a constraint that this engine does not support."""
    constraint = request.sampling.constraint
    if constraint is None:
        return
    if engine.grammars is None:
        raise PeerError(ErrorCode.UNSUPPORTED, "constraints are not supported here")
    shaping = request.sampling.shaping
    if shaping is not None and (shaping.bad_words or shaping.min_tokens):
        # They could exclude the only tokens that the constraint allows.
        raise PeerError(ErrorCode.UNSUPPORTED, "a constraint cannot be combined with bad words or a minimum length")
    if min(constraint.ends, default=engine.vocab_tokens) >= engine.vocab_tokens or not (
        set(constraint.ends) <= set(request.eos)
    ):
        raise PeerError(ErrorCode.UNSUPPORTED, "the constraint's end tokens do not end the request")
    if fault := engine.grammars.fault(constraint):
        raise PeerError(ErrorCode.BAD_CONSTRAINT, fault)
