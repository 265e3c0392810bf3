"""The demo is the real simulation: real text, real drafters, a verifier that dies, the same in every run."""

import pytest

from cosine_lab.monitor_demo import demo_snapshot
from cosine_tui.state.snapshot import ConnectionState, RequestState

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
