"""The demo is the real simulation: real text, real drafters, a verifier that dies, the same in every run."""

import pytest

from cosine_lab.monitor_demo import demo_snapshot
from cosine_protocol.records import Role
from cosine_tui.state.snapshot import ConnectionState, EventKind, Reachability, RequestState

pytestmark = pytest.mark.thorough
PROMPT = "something medical please"


def test_a_prompt_that_names_a_domain_gets_a_recorded_answer_from_it() -> None:
    snapshot = demo_snapshot(1, 8.0, prompts={2.0: PROMPT})
    assert snapshot.connection.state is ConnectionState.LIVE and "simulated" in snapshot.note
    (own,) = [request for request in snapshot.requests if request.is_own]
    assert (own.prompt, own.label, own.state) == (PROMPT, "medical", RequestState.FINISHED)
    text = "".join(run.text for run in own.text)
    assert "prevalence" in text and len(text) > 60
    assert max(own.drafters, key=lambda drafter: drafter.accepted).domain == "medical"


def test_a_verifier_dies_and_its_requests_go_on() -> None:
    snapshot = demo_snapshot(1, 22.0, prompts={2.0: PROMPT})
    kinds = [event.kind for event in snapshot.events]
    assert EventKind.FAILOVER in kinds and EventKind.UNREACHABLE in kinds
    lost = [node for node in snapshot.nodes if node.reachability is Reachability.LOST]
    assert [node.role for node in lost] == [Role.VERIFIER]
    for request in snapshot.requests:
        assert request.state is not RequestState.FAILED
        assert request.tokens == sum(origin.tokens for origin in request.origins)
        assert "\ufffd" not in "".join(run.text for run in request.text)
