"""The demo is the real simulation: real text, real drafters, a verifier that dies, the same in every run."""

from functools import lru_cache

import pytest

from cosine_lab.monitor_demo import demo_scenario, demo_snapshot
from cosine_protocol.records import Role
from cosine_tui.state.snapshot import ConnectionState, EventKind, Reachability, RequestState, Snapshot
from tests.thoroughness import quick_first

PROMPT = "something medical please"


@lru_cache
def picture_after(seconds: float) -> Snapshot:
    return demo_snapshot(1, seconds, prompts={2.0: PROMPT})


@pytest.mark.thorough
def test_everybody_is_there_and_drafts() -> None:
    snapshot = picture_after(8.0)
    assert snapshot.connection.state is ConnectionState.LIVE and "simulated" in snapshot.note
    scenario = demo_scenario(1)
    roles = [node.role for node in snapshot.nodes]
    assert (roles.count(Role.VERIFIER), roles.count(Role.DRAFTER)) == (scenario.verifiers, scenario.drafters)
    assert all(
        node.reachability is Reachability.UP and node.record.emulated == scenario.profile for node in snapshot.nodes
    )
    assert any(origin.is_copied for request in snapshot.requests for origin in request.origins)
    assert any(node.standing.text_share for node in snapshot.nodes)


def test_a_prompt_that_names_a_domain_gets_a_recorded_answer_from_it() -> None:
    (own,) = [request for request in picture_after(8.0).requests if request.is_own]
    assert (own.prompt, own.label, own.state) == (PROMPT, "medical", RequestState.FINISHED)
    text = "".join(run.text for run in own.text)
    assert "prevalence" in text and len(text) > 60
    assert max(own.drafters, key=lambda drafter: drafter.accepted).domain == "medical"


@pytest.mark.thorough
def test_a_verifier_dies_and_its_requests_go_on() -> None:
    snapshot = picture_after(22.0)
    kinds = [event.kind for event in snapshot.events]
    assert EventKind.FAILOVER in kinds and EventKind.UNREACHABLE in kinds
    lost = [node for node in snapshot.nodes if node.reachability is Reachability.LOST]
    assert [node.role for node in lost] == [Role.VERIFIER]
    assert not any(request.state is RequestState.FAILED for request in snapshot.requests)


@pytest.mark.parametrize("seconds", quick_first([8.0, 22.0]))
def test_every_token_has_an_author_and_the_text_is_whole(seconds: float) -> None:
    for request in picture_after(seconds).requests:
        assert request.tokens == sum(origin.tokens for origin in request.origins)
        assert "\ufffd" not in "".join(run.text for run in request.text)
