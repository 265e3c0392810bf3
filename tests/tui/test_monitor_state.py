"""Surveys and requests become snapshots and events."""

from dataclasses import replace

import pytest

from cosine_p2p.request.results import Chunk
from cosine_p2p.survey import NodeSight
from cosine_protocol.records import Role
from cosine_tui.state.monitor_state import KEPT_REQUESTS, MonitorState, node_events, why_lost
from cosine_tui.state.snapshot import Event, EventKind, NodeView, RequestDescription, RequestState, Tally
from tests.cosine_p2p.samples import TARGET
from tests.tui.snapshots import LOST_REASON, SPARE, VERIFIER, node_of, peer_id_of, progress_of, sight_of, survey_of

ASKED = RequestDescription(prompt="Add", strategy="cosine")


def new_state() -> MonitorState:
    return MonitorState(title="network test", target=TARGET)


def kinds(events: tuple[Event, ...]) -> list[EventKind]:
    return [event.kind for event in events]


def test_the_first_look_is_one_event_however_many_nodes_there_are() -> None:
    state = new_state()
    state.add_survey(survey_of(sight_of(1, Role.VERIFIER), sight_of(3), sight_of(4, reason="gone")), 1.0)
    (event,) = state.snapshot(1.0).events
    assert (event.kind, event.text) == (EventKind.JOINED, "found 1 verifier and 2 drafters, 1 of them unreachable")


def test_a_node_shows_what_it_says_itself_before_what_it_announced() -> None:
    state = new_state()
    state.add_survey(survey_of(sight_of(3, passes=10)), 1.0)
    assert state.snapshot(1.0).nodes[0].passes_per_s is None
    state.add_survey(survey_of(sight_of(3, passes=40)), 3.0)
    node = state.snapshot(3.0).nodes[0]
    assert (node.load, node.capacity, node.rtt_ms, node.pass_ms) == (2, 4, 20.0, 0.9)
    assert node.passes_per_s == pytest.approx(15.0)
    state.add_survey(survey_of(sight_of(3, passes=2)), 4.0)
    assert state.snapshot(4.0).nodes[0].passes_per_s is None
    assert state.snapshot(4.0).note == ""
    lost = sight_of(3, reason=LOST_REASON)
    state.add_survey(survey_of(replace(lost, record=replace(lost.record, emulated="60/6@10"))), 5.0)
    node = state.snapshot(6.0).nodes[0]
    assert (node.is_up, node.reason, node.since_s) == (False, LOST_REASON, 5.0)
    assert state.snapshot(6.0).note == "emulated devices: 60/6@10"


def test_the_tally_of_a_drafter_counts_running_and_finished_requests() -> None:
    state = new_state()
    state.add_survey(survey_of(sight_of(3)), 1.0)
    assert state.snapshot(1.0).nodes[0].tally == Tally()
    for _ in range(2):
        log = state.add_request(ASKED, 1.0)
        log.note_chunk(Chunk("x", (1, 2, 3, 4), peer_id_of(3)), rounds=1, now_s=1.5)
        state.note_progress(log, progress_of(3, code=(20, 3)), 2.0)
    before = state.snapshot(2.0).nodes[0]
    state.end_request(log, RequestState.FINISHED, 3.0)
    node = state.snapshot(3.0).nodes[0]
    assert node.tally == before.tally == Tally(requests=2, drafted=40, accepted=6, text_tokens=8)
    assert node.tally.text_share == pytest.approx(0.75) and node.author == 1


def test_old_requests_are_forgotten_and_running_ones_never() -> None:
    state = new_state()
    running = state.add_request(ASKED, 0.0)
    for _ in range(2 * KEPT_REQUESTS):
        state.end_request(state.add_request(ASKED, 1.0), RequestState.FINISHED, 2.0)
    requests = state.snapshot(2.0).requests
    assert len(requests) <= KEPT_REQUESTS + 1 and requests[0].number == running.number


@pytest.mark.parametrize(
    ("sights", "problem", "knew", "why"),
    [
        ((sight_of(1), sight_of(2, reason="gone")), "", True, ""),
        ((sight_of(1),), "a part did not answer", True, ""),
        ((), "the DHT did not answer", True, "the DHT did not answer"),
        ((), "", False, ""),
        ((), "", True, "nobody is announced any more"),
        ((sight_of(1, reason="gone"), sight_of(2, reason="gone")), "", True, "none of 2 announced nodes answers"),
    ],
)
def test_when_a_swarm_is_lost(sights: tuple[NodeSight, ...], problem: str, knew: bool, why: str) -> None:
    assert why_lost(survey_of(*sights, problem=problem), has_known_nodes=knew) == why


UP, DOWN = "", "gone"


def told(before: tuple[NodeView, ...], after: tuple[NodeView, ...]) -> list[tuple[EventKind, str]]:
    events = node_events({node.peer_id: node for node in before}, after, 5.0)
    return [(event.kind, event.text) for event in events]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (UP, DOWN, [EventKind.UNREACHABLE]),
        (DOWN, UP, [EventKind.REACHABLE]),
        (None, UP, [EventKind.JOINED]),
        (None, DOWN, [EventKind.JOINED, EventKind.UNREACHABLE]),
        (UP, None, [EventKind.LEFT]),
    ],
)
def test_a_node_that_changes_is_an_event(before: str | None, after: str | None, kinds: list[EventKind]) -> None:
    other = node_of(VERIFIER)
    old, new = ((other,) if state is None else (other, node_of(SPARE, reason=state)) for state in (before, after))
    assert [kind for kind, _ in told(old, new)] == kinds
