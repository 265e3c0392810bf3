"""Events between two surveys, and when a swarm is thought lost."""

from dataclasses import replace

import pytest

from cosine_p2p.survey import Survey
from cosine_tui.node_events import node_events, why_lost
from cosine_tui.snapshot import EventKind, NodeView, Reachability
from tests.tui.snapshots import CODE, NODES, SPARE, VERIFIER, drafter_of, node_of, sight_of, survey_of

UP, DOWN = Reachability.UP, Reachability.LOST


def told(before: tuple[NodeView, ...], after: tuple[NodeView, ...]) -> list[tuple[EventKind, str]]:
    events = node_events({node.peer_id: node for node in before}, after, 5.0)
    return [(event.kind, event.text) for event in events]


def test_the_first_survey_is_one_event() -> None:
    assert told((), NODES) == [(EventKind.JOINED, "found 2 verifiers and 2 drafters, 1 of them unreachable")]
    assert told((), ()) == []


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (UP, UP, []),
        (UP, DOWN, [EventKind.UNREACHABLE]),
        (DOWN, DOWN, []),
        (DOWN, UP, [EventKind.REACHABLE]),
        (None, UP, [EventKind.JOINED]),
        (None, DOWN, [EventKind.JOINED, EventKind.UNREACHABLE]),
        (UP, None, [EventKind.LEFT]),
    ],
)
def test_a_node_that_changes_is_an_event(
    before: Reachability | None, after: Reachability | None, kinds: list[EventKind]
) -> None:
    other = node_of(VERIFIER)
    old, new = (
        (other,) if state is None else (other, node_of(SPARE, reachability=state)) for state in (before, after)
    )
    assert [kind for kind, _ in told(old, new)] == kinds


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("m", "m+learned-1-1a2b3c4d", [(EventKind.LEARNED, "serves version 1 of m")]),
        ("m+learned-1-1a2b3c4d", "m+learned-3-1a2b3c4d", [(EventKind.LEARNED, "serves version 3 of m")]),
        ("m+learned-3-1a2b3c4d", "m+learned-1-1a2b3c4d", [(EventKind.WENT_BACK, "from version 3 to version 1")]),
        ("m+learned-3-1a2b3c4d", "m", [(EventKind.WENT_BACK, "from version 3 to the model as it came")]),
        ("m+learned-3-1a2b3c4d", "m+learned-3-1a2b3c4d", []),
        ("m+learned-3-1a2b3c4d", "ngram", []),
        ("m", "ngram", []),
    ],
)
def test_other_learned_weights_are_an_event(before: str, after: str, expected: list[tuple[EventKind, str]]) -> None:
    node = drafter_of(CODE, "code", 1)
    old, new = (replace(node, record=replace(node.record, model=model)) for model in (before, after))
    title = f"code drafter {CODE[-6:]} "
    assert [(kind, text.removeprefix(title)) for kind, text in told((old,), (new,))] == expected


def test_a_drafter_is_named_by_its_domain() -> None:
    assert told((node_of(VERIFIER), drafter_of(CODE, "code", 1)), (node_of(VERIFIER),)) == [
        (EventKind.LEFT, f"code drafter {CODE[-6:]}")
    ]


@pytest.mark.parametrize(
    ("survey", "has_known_nodes", "reason"),
    [
        (survey_of(sight_of(1), sight_of(2, reason="no answer")), True, ""),
        (survey_of(sight_of(1, reason="no answer")), True, "none of 1 announced nodes answers"),
        (survey_of(problem="the DHT did not answer"), True, "the DHT did not answer"),
        (survey_of(), True, "nobody is announced any more"),
        (survey_of(), False, ""),
    ],
)
def test_a_swarm_is_lost_when_nobody_answers(survey: Survey, has_known_nodes: bool, reason: str) -> None:
    assert why_lost(survey, has_known_nodes=has_known_nodes) == reason
