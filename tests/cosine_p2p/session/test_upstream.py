"""Tests of the state of one verifier: its stream, pace and transcripts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from cosine_p2p.session.stall import Watch
from cosine_p2p.session.upstream import LEAST_COMMITS, SignedStreams, Upstream
from cosine_p2p.transport.link import PeerLink
from cosine_p2p.trust.peer_memory import PeerSpeeds
from cosine_protocol.audit import open_claim
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.identity import sign
from cosine_protocol.request import AskedLogprobs
from cosine_protocol.verify import (
    Commit,
    Likelihood,
    PassStats,
    PromptLikelihoods,
    TokenLikelihood,
    Transcript,
    told_digest,
)
from tests.cosine_p2p.samples import identity_of, request_of

REQUEST = request_of("client", max_new_tokens=6)
D_0 = request_digest(REQUEST)


def upstream(after: tuple[int, ...] = (), *, number: int = 1, is_opened: bool = True) -> Upstream:
    link = SimpleNamespace(peer_id=identity_of(number).peer_id, rtt_s=0.1)
    digest = roll_digest(D_0, after)
    return Upstream(1, cast("PeerLink", link), REQUEST, D_0, digest, len(after), Watch(since_s=0.0), is_opened)


def commit(tokens: tuple[int, ...], *, after: tuple[int, ...] = ()) -> Commit:
    digest = roll_digest(D_0, [*after, *tokens])
    return Commit(1, len(after), tokens, digest, bytes(len(tokens)), PassStats(0, 0, 60_000))


def test_nothing_is_taken_before_the_request_is_open() -> None:
    with pytest.raises(RemoteProtocolError, match="before the request was opened"):
        upstream(is_opened=False).take(commit((1,)), authors=0)


@pytest.mark.parametrize(
    ("commits_at_s", "pass_s", "prefill_s"),
    [([], None, None), ([1.1, 2.0], None, 1.0), ([1.1 + n for n in range(LEAST_COMMITS + 1)], 1.0, 1.0)],
)
def test_the_pace_is_remembered_without_round_trips(
    commits_at_s: list[float], pass_s: float | None, prefill_s: float | None
) -> None:
    verifier, speeds = upstream(), PeerSpeeds()
    for now_s in commits_at_s:
        verifier.watch.note_commit(now_s)
    verifier.note_pace(speeds, verifier.watch.since_s)
    usual = speeds.usual([verifier.peer_id], now_s=10.0)
    assert usual.pass_s == pytest.approx(pass_s)
    assert usual.prefill_token_s == pytest.approx(prefill_s)


TELLING = replace(REQUEST, prompt=(1, 2, 3), logprobs=AskedLogprobs(1, of_prompt=True))
TELLING_D_0 = request_digest(TELLING)


def telling() -> Upstream:
    return replace(upstream(), request=TELLING, d_0=TELLING_D_0, digest=TELLING_D_0, tells_prompt=True)


def likely(token: int) -> Likelihood:
    return Likelihood(500_000, (TokenLikelihood(token, 500_000),))


def of_prompt(*tokens: int, position: int = 1) -> PromptLikelihoods:
    return PromptLikelihoods(1, position, tuple(map(likely, tokens)))


def told_commit(*tokens: int, likelihoods: tuple[Likelihood, ...] | None = None) -> Commit:
    digest = roll_digest(TELLING_D_0, tokens)
    told = tuple(map(likely, tokens)) if likelihoods is None else likelihoods
    stats = PassStats(0, 0, 60_000)
    return Commit(1, 0, tokens, digest, bytes(len(tokens)), stats, likelihoods=told)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([of_prompt(3, position=2)], "do not fit it"),
        ([of_prompt(2), told_commit(4)], "before all log-probabilities of the prompt"),
        ([of_prompt(2, 3), told_commit(4, 5, likelihoods=(likely(4),))], "do not fit the tokens"),
        (
            [of_prompt(2, 3), told_commit(4, likelihoods=(Likelihood(1, (TokenLikelihood(4, 2),)),))],
            "two probabilities",
        ),
    ],
)
def test_log_probabilities_that_cannot_be_cost_a_verifier_its_place(messages: list[Message], why: str) -> None:
    verifier = telling()

    def take(message: Message) -> None:
        if isinstance(message, PromptLikelihoods):
            verifier.take_prompt_likelihoods(message)
        elif isinstance(message, Commit):
            verifier.take(message, authors=0)

    for good in messages[:-1]:
        take(good)
    with pytest.raises(RemoteProtocolError, match=why):
        take(messages[-1])


def test_a_transcript_signs_all_that_was_told_and_the_claim_holds_it() -> None:
    verifier, streams = telling(), SignedStreams()
    verifier.take_prompt_likelihoods(of_prompt(2, 3))
    told = tuple(map(likely, (2, 3, 4, 5)))
    commit, parts = told_commit(4, 5), []
    for digest in (told_digest(told[2:]), told_digest(told)):
        part = Transcript(0, 2, commit.digest, digest)
        parts.append(sign(identity_of(1), part, digest=TELLING_D_0))
    with pytest.raises(RemoteProtocolError, match="not that of the stream"):
        replace_told(verifier).take(replace(commit, transcript=parts[0]), authors=0)
    verifier.take(replace(commit, transcript=parts[1]), authors=0)
    streams.note(verifier)
    (claim,) = streams.claims(TELLING, (4, 5))
    assert claim.likelihoods == told
    assert open_claim(claim).told == told_digest(told)


def replace_told(verifier: Upstream) -> Upstream:
    other = telling()
    other.take_prompt_likelihoods(of_prompt(*(each.top[0].token for each in verifier.told)))
    return other
