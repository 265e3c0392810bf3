"""The coordinator that knows the stream: what is on it is certain, everything else is worth nothing."""

from cosine_lab.experiments.experiment import Cell, Prompts, run_cell
from cosine_lab.experiments.oracle import OracleCosine
from cosine_p2p.strategy.base import DrafterStarted, FragmentReceived, SendTree, VerifierOpened
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, Node, NodeBlock

ROOT = bytes(16)
STREAM = (7, 8, 9)


def forwarded(*nodes: Node) -> list[tuple[int, float]]:
    """The tokens that go to the verifier when a drafter drafts these nodes, with their probabilities."""
    strategy = OracleCosine(ROOT, stream=STREAM)
    strategy.on(VerifierOpened(0.06, 0.02), 0.0)
    strategy.on(DrafterStarted(1, 2.0, 0.006, 0.02), 0.0)
    actions = strategy.on(FragmentReceived(1, Draft(1, 1, ROOT, 0, NodeBlock.of(nodes))), 0.1)
    return [
        (n.token, n.confidence) for action in actions if isinstance(action, SendTree) for n in action.block.nodes
    ]


def test_what_is_on_the_stream_is_certain_however_unlikely_it_was_called() -> None:
    assert forwarded(Node(BASE, 7, 0.01), Node(0, 8, 0.02)) == [(7, 1.0), (8, 1.0)]


def test_nothing_off_the_stream_is_sent() -> None:
    assert forwarded(Node(BASE, 7, 0.3), Node(BASE, 5, 0.7), Node(1, 8, 0.9)) == [(7, 1.0)]


def test_a_token_of_the_stream_at_another_place_is_not_on_it() -> None:
    assert forwarded(Node(BASE, 8, 0.9)) == []
    assert forwarded(Node(BASE, 7, 0.5), Node(0, 9, 0.9)) == [(7, 1.0)]


def test_drafters_that_know_too_bring_more_than_a_coordinator_that_knows() -> None:
    scenario = {"rtt_ms": 20.0, "max_new_tokens": 32, "decision_s": 0.0}
    knowing = run_cell(Cell(strategy="oracle", scenario=scenario, prompts=Prompts(count=2)))
    drafting = run_cell(Cell(strategy="oracle", scenario={**scenario, "is_oracle": True}, prompts=Prompts(count=2)))
    assert knowing.checks["mismatches"] == drafting.checks["mismatches"] == 0
    assert drafting.total_s < knowing.total_s
