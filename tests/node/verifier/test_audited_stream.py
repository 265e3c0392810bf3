"""A replay compares every position once, however it is fed, and says how far each other token was away."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.engine.base import Choice
from cosine_node.verifier.audited_stream import CANDIDATES, SCORED_TOKENS, gap_of
from cosine_protocol.limits import MAX_AUDIT_FINDINGS, MAX_SCORE_GAP
from cosine_protocol.messages import AuditVerdict
from cosine_protocol.request import Request, Sampling
from cosine_protocol.statements import open_verdict
from tests.node.peers import SERVER, expected_output, request_of
from tests.node.verifier.replaying import audited_stream, claim_of, feed

TOKENS = 90
SAMPLED = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.2, seed=5)


def replayed(
    request: Request, tokens: tuple[int, ...], *, first: int = 0, chunk: int = 512, preempted: bool = False
) -> AuditVerdict:
    """The verdict about a stream that `SERVER` signed, fed at most `chunk` tokens a pass."""
    engine = ScriptedEngine()
    claim = claim_of(request, tokens, first=first)
    stream = audited_stream(engine, claim, first=first)
    while not stream.is_compared:
        before = engine.live_tokens
        feed(engine, stream, chunk)
        assert engine.live_tokens - before <= max(SCORED_TOKENS, first + len(request.prompt) - 1)
        if preempted and stream.kv.fed_tokens > TOKENS / 2:
            preempted = False
            engine.release(stream.kv.sequence)
            stream.preempt(engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt)))
    return open_verdict(stream.answer(SERVER), auditor=SERVER.peer_id, claim=claim)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@given(first=st.integers(0, TOKENS - 1), chunk=st.integers(1, 200), preempted=st.booleans())
def test_what_the_target_commits_is_equal_at_every_position(
    sampling: Sampling, first: int, chunk: int, preempted: bool
) -> None:
    request = request_of("c", max_new_tokens=TOKENS, sampling=sampling)
    tokens = expected_output(request, ScriptedEngine())
    verdict = replayed(request, tokens, first=first, chunk=chunk, preempted=preempted)
    assert (verdict.equal, verdict.near_ties, verdict.different) == (TOKENS - first, 0, 0)


@given(place=st.integers(0, TOKENS - 1), first=st.integers(0, TOKENS - 1))
def test_another_token_is_found_where_its_author_is_the_one_that_is_audited(place: int, first: int) -> None:
    request = request_of("c", max_new_tokens=TOKENS, sampling=SAMPLED)
    tokens = list(expected_output(request, ScriptedEngine()))
    right, tokens[place] = tokens[place], (tokens[place] + 1) % 16
    verdict = replayed(request, tuple(tokens[: place + 1]), first=min(first, place))
    [finding] = verdict.findings
    assert (finding.position, finding.token, verdict.different) == (place, right, 1)
    assert finding.gap > 0


def test_of_many_differences_the_verdict_names_so_many() -> None:
    request = request_of("c", max_new_tokens=TOKENS, sampling=SAMPLED)
    verdict = replayed(request, (1,) * TOKENS)
    assert verdict.different > MAX_AUDIT_FINDINGS == len(verdict.findings)


def test_a_gap_is_the_distance_of_two_scores_as_far_as_it_is_known() -> None:
    choice = Choice(4, 0.5, ((4, 0.6), (5, 0.3), (6, 0.01)))
    assert gap_of(choice, 5) == pytest.approx(math.log(2))
    assert gap_of(choice, 7) == MAX_SCORE_GAP
    many = Choice(0, 0.1, tuple((token, 0.5**token) for token in range(CANDIDATES)))
    assert gap_of(many, 99) == pytest.approx((CANDIDATES - 1) * math.log(2))
