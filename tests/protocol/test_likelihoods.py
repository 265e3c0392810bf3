"""Checks and sizes of likelihoods."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.audit import AskAudit, open_claim
from cosine_protocol.codec import encode
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import MalformedMessage, UsageError
from cosine_protocol.fields import MAX_TOKEN_ID
from cosine_protocol.identity import Signed, sign
from cosine_protocol.request import MAX_TOP_LOGPROBS, AskedLogprobs
from cosine_protocol.verify import (
    MAX_SURPRISAL,
    Likelihood,
    TokenLikelihood,
    Transcript,
    check_likelihood,
    check_room,
    surprisal_of,
    told_digest,
)
from tests.protocol.samples import LIKELIHOODS, OWNER, request_of


def told_of(probability: float, *top: tuple[int, float]) -> Likelihood:
    return Likelihood(
        surprisal_of(math.log(probability)),
        tuple(TokenLikelihood(token, surprisal_of(math.log(p))) for token, p in top),
    )


def test_what_is_impossible_has_the_highest_surprisal_and_rounding_makes_nothing_likelier_than_certain() -> None:
    assert surprisal_of(-math.inf) == surprisal_of(-1e9) == MAX_SURPRISAL
    assert surprisal_of(1e-7) == 0


@given(
    scores=st.lists(st.floats(-60.0, 0.0), min_size=2, max_size=60),
    top=st.integers(0, MAX_TOP_LOGPROBS),
    data=st.data(),
)
def test_what_an_honest_verifier_tells_is_taken(scores: list[float], top: int, data: st.DataObject) -> None:
    total = math.log(math.fsum(map(math.exp, scores)))
    surprisals = [surprisal_of(score - total) for score in scores]
    best = sorted(range(len(scores)), key=lambda token: (surprisals[token], token))[:top]
    token = data.draw(st.integers(0, len(scores) - 1))
    told = Likelihood(surprisals[token], tuple(TokenLikelihood(each, surprisals[each]) for each in best))
    check_likelihood(told, token, top=top)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (told_of(0.5, (7, 0.5), (8, 0.6)), "no order"),
        (told_of(0.4, (7, 0.5), (8, 0.3)), "two probabilities"),
        (told_of(0.2, (8, 0.3), (9, 0.1)), "likelier than the likeliest"),
        (told_of(0.2, (8, 0.6), (9, 0.3)), "more than one"),
        (told_of(0.7, (7, 0.7)), "1 likeliest tokens were sent, not 2"),
    ],
)
def test_what_cannot_be_is_refused(told: Likelihood, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        check_likelihood(told, 7, top=2)


@pytest.mark.parametrize("of_prompt", [False, True])
@pytest.mark.parametrize("top", [0, MAX_TOP_LOGPROBS])
def test_the_audit_of_all_that_may_be_told_fits_a_frame(top: int, of_prompt: bool) -> None:
    def fits(tokens: int) -> bool:
        try:
            check_room(prompt_tokens=tokens, new_tokens=tokens, top=top, of_prompt=of_prompt)
        except UsageError:
            return False
        return True

    most = max(tokens for tokens in range(0, 100_000, 100) if fits(tokens))
    token = MAX_TOKEN_ID
    told = Likelihood(MAX_SURPRISAL, (TokenLikelihood(token, MAX_SURPRISAL),) * top)
    request = request_of(prompt=(token,) * most, max_new_tokens=most, logprobs=AskedLogprobs(top, of_prompt))
    transcript: Signed[Transcript] = Signed(bytes(64), bytes(64))
    encode(AskAudit(1, request, (token,) * most, OWNER.peer_id, transcript, (told,) * (most * (1 + of_prompt))))


def test_a_claim_holds_for_exactly_the_likelihoods_that_were_signed() -> None:
    request = request_of(logprobs=AskedLogprobs(2))
    d_0, tokens = request_digest(request), (3, 5)
    transcript = Transcript(0, 2, roll_digest(d_0, tokens), told_digest(LIKELIHOODS))
    signed = sign(OWNER, transcript, digest=d_0)
    assert open_claim(AskAudit(1, request, tokens, OWNER.peer_id, signed, LIKELIHOODS)) == transcript
    for other in (None, LIKELIHOODS[:1], LIKELIHOODS[::-1], ()):
        with pytest.raises(MalformedMessage):
            open_claim(AskAudit(1, request, tokens, OWNER.peer_id, signed, other))
