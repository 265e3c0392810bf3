"""The routing comparison on synthetic generations: what a round is, and that experts are found."""

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.experiments.reference_routers import FixedRouter, LabelRouter, UniformRouter
from cosine_lab.experiments.routing import (
    OURS,
    REFERENCE,
    RIVALS,
    ROUTERS,
    TRAFFIC,
    ComparedRouter,
    RoutingOptions,
    RoutingTable,
    best_constants,
    best_in_hindsight,
    measure,
)
from cosine_lab.experiments.routing_replay import (
    DRAFT_TOKENS,
    LATE_TOKENS,
    REQUEST_TOKENS,
    ReplayedRequest,
    changing_traffic,
    mixed_traffic,
    replay,
    round_of,
    rounds_alone,
)
from cosine_lab.simulation.traces import DrafterTrace, Trace, TraceSet
from cosine_protocol.errors import UsageError
from tests.lab.experiments.quick import quick_result

DOMAINS = ("code", "math", "poems")
SKILLS = {"expert": 0.8, "other": 0.15, "general": 0.45}


def drafter(stream: tuple[int, ...], hits: list[bool], *, prompt_nll: float) -> DrafterTrace:
    """A drafter whose first choice is right where it hits, and names the right token second elsewhere."""
    rows = [
        (token, 900, 901, 902) if hit else (900, token, 901, 902) for token, hit in zip(stream, hits, strict=True)
    ]
    claims = np.tile(np.array([0.6, 0.2, 0.1, 0.0], np.float32), (len(stream), 1))
    zeros = np.zeros(len(stream), np.float32)
    return DrafterTrace(np.array(rows, np.int32), claims, zeros, zeros, prompt_nll)


def trace(number: int, domain: str, *, tokens: int = 60, split: str = "test", is_finished: bool = True) -> Trace:
    chance = random.Random(number)
    stream = tuple(chance.randrange(1, 800) for _ in range(tokens - is_finished)) + (0,) * is_finished
    drafters = {}
    for name in (*DOMAINS, "general"):
        kind = "general" if name == "general" else "expert" if name == domain else "other"
        hits = [chance.random() < SKILLS[kind] for _ in stream]
        drafters[f"draft-{name}"] = drafter(stream, hits, prompt_nll=4.0 - 3.0 * SKILLS[kind])
    return Trace(number, domain, split, 0.0, 0, 10, stream, (False,) * tokens, drafters)


def family() -> TraceSet:
    splits = ("tune", "test", "test")
    return TraceSet(
        trace(10 * index + place, domain, split=split)
        for index, domain in enumerate(DOMAINS)
        for place, split in enumerate(splits)
    )


def request_of(hits: Mapping[str, list[bool]]) -> ReplayedRequest:
    tokens = len(next(iter(hits.values())))
    stream = tuple(range(1, tokens + 1))
    drafters = {f"draft-{name}": drafter(stream, own, prompt_nll=1.0) for name, own in hits.items()}
    whole = Trace(1, "code", "test", 0.0, 0, 10, stream, (False,) * tokens, drafters)
    return ReplayedRequest.of(whole, random.Random(0))


def author_of(request: ReplayedRequest, name: str) -> int:
    return next(author for author, model in request.models.items() if model == f"draft-{name}")


def test_a_round_commits_what_hits_and_one_token_more() -> None:
    request = request_of({"code": [True, True, False, True, True, True, True, True]})
    rounds = replay(FixedRouter([1]), request, active=1)
    assert [(one.position, one.accepted) for one in rounds] == [(0, 2), (3, 4)]


def test_a_router_hears_of_everyone_up_to_the_first_miss() -> None:
    request = request_of({"code": [True, False, True, True], "math": [True, True, False, True]})
    code, math = author_of(request, "code"), author_of(request, "math")
    told = round_of(request, (math, code), 0, 3)
    assert told.used == {math}
    assert told.accepted == {math: 2, code: 1}
    assert told.agreement == {math: pytest.approx(2 / 3), code: pytest.approx(1 / 3)}
    expected = [{math: 0.6, code: 0.6}, {math: 0.6, code: 0.2}, {math: 0.2}]
    assert [dict(said) for said in told.likelihoods] == [pytest.approx(said) for said in expected]


def test_claims_above_one_are_scaled_down() -> None:
    said = drafter((1,), [True], prompt_nll=1.0)
    loud = DrafterTrace(said.candidate_tokens, said.candidate_probabilities * 4, *said.arrays()[2:], prompt_nll=1.0)
    whole = Trace(1, "code", "test", 0.0, 0, 10, (1,), (False,), {"draft-code": loud})
    [likelihood] = ReplayedRequest.of(whole, random.Random(0)).chains[1].likelihoods
    assert likelihood == pytest.approx(2.4 / 3.6)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_whoever_drafts_the_whole_request_is_committed(code: list[bool], math: list[bool]) -> None:
    request = request_of({"code": code, "math": math[: len(code)]})
    rounds = replay(UniformRouter(random.Random(1)), request, active=2)
    ends = [one.position + min(one.accepted + 1, request.tokens - one.position) for one in rounds]
    assert [one.position for one in rounds] == [0, *ends[:-1]]
    assert ends[-1] == request.tokens
    assert all(0 <= one.accepted <= DRAFT_TOKENS for one in rounds)


def test_nobody_to_draft_is_an_error() -> None:
    with pytest.raises(UsageError, match="picks no drafter"):
        replay(FixedRouter([]), request_of({"code": [True]}), active=1)


def test_the_best_in_hindsight_needs_the_fewest_rounds() -> None:
    request = request_of({"code": [True] * 8, "math": [False] * 8})
    assert best_in_hindsight(request) == author_of(request, "code")


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_rounds_of_one_drafter_alone_are_those_of_the_replay(hits: list[bool]) -> None:
    request = request_of({"code": hits})
    assert rounds_alone(request, 1) == len(replay(FixedRouter([1]), request, active=1))


def test_mixed_traffic_has_requests_of_every_domain_in_full_length() -> None:
    requests = mixed_traffic(family().select(split="test"), per_domain=2, seed=1)
    assert sorted(request.domains for request in requests) == sorted([((0, domain),) for domain in DOMAINS] * 2)
    assert {request.tokens for request in requests} == {REQUEST_TOKENS}
    assert len({tuple(request.models.items()) for request in requests}) > 1


def test_changing_traffic_changes_domain_where_it_says() -> None:
    for request in changing_traffic(family().select(split="test"), per_domain=2, seed=1):
        (start, first), (change, second) = request.domains
        assert (start, change, request.tokens) == (0, LATE_TOKENS, REQUEST_TOKENS)
        assert first != second
        rounds = replay(LabelRouter(request), request, active=1)
        assert {request.models[one.used] for one in rounds if one.position >= change} == {f"draft-{second}"}


def test_ours_comes_near_the_best_drafter() -> None:
    requests = mixed_traffic(family().select(split="test"), per_domain=2, seed=3)
    ours, best = (measure(router, requests, constants={}, seed=0) for router in (OURS[0], REFERENCE))
    assert ours.late_accepted_per_round > 0.95 * best.late_accepted_per_round


def test_no_single_drafter_is_as_good_as_ours_where_the_domain_changes() -> None:
    requests = changing_traffic(family().select(split="test"), per_domain=2, seed=3)
    ours, best = (measure(router, requests, constants={}, seed=0) for router in (OURS[0], REFERENCE))
    assert ours.accepted_per_round > best.accepted_per_round


def test_the_constants_with_the_fewest_rounds_are_chosen() -> None:
    request = request_of({"code": [True] * 30, "math": [False] * 30})
    code = author_of(request, "code")
    orders = ({"order": [3 - code]}, {"order": [code]})
    router = ComparedRouter("fixed", 1, lambda r, chance, **constants: FixedRouter(**constants), orders)
    assert best_constants(router, [[request]]) == {"order": [code]}


def test_the_same_seed_gives_the_same_counts() -> None:
    test = family().select(split="test")
    router = ComparedRouter("uniform", 1, lambda r, chance: UniformRouter(chance))
    one, other = (
        measure(router, changing_traffic(test, per_domain=1, seed=4), constants={}, seed=5) for _ in range(2)
    )
    assert one == other


def test_a_table_has_one_row_for_each_router() -> None:
    options = replace(RoutingOptions.quick(), seeds=2)
    table = RoutingTable(scenario="mixed", temperature=0.0, options=options)
    rows = table.rows(family(), (OURS[0], REFERENCE))
    assert [(row["router"], row["active"]) for row in rows] == [("hedge", 3), ("best-in-hindsight", 1)]
    assert rows[1]["share_of_best"] == 1.0
    assert rows[1]["regret_rounds"] == 0.0
    assert rows[0]["late_right_expert_share"] > 0.8


def test_every_router_is_on_every_kind_of_traffic() -> None:
    rows = quick_result("routing")["rows"]
    assert [row["router"] for row in rows] == [router.name for _ in TRAFFIC for router in ROUTERS]


def test_the_findings_compare_with_the_best_rival_of_each_kind() -> None:
    result = quick_result("routing")
    accepted = {(r["scenario"], r["router"], r["active"]): r["accepted_per_round"] for r in result["rows"]}
    for entry in result["findings"]["against_rivals"]:
        rivals = [accepted[entry["scenario"], router.name, router.active] for router in RIVALS]
        ours = accepted[entry["scenario"], "hedge", 3]
        assert entry["ratio_to_best_rival"] == pytest.approx(ours / max(rivals))
