"""Rows of the next pass: first who waits for one, then drafts below what passes under way feed."""

from collections.abc import Sequence
from typing import Any

import pytest

from cosine_node.engine.curve import CostCurve
from cosine_node.engine.scripted import ScriptedEngine
from cosine_node.verifier.pass_rows import PassRows, Rows
from cosine_node.verifier.policy import Policy
from cosine_node.verifier.request import KvState, RequestStage, VerifierRequest
from cosine_node.verifier.served import ServedRequests
from cosine_protocol.errors import CosineError
from cosine_protocol.messages import Message, Pacing
from cosine_protocol.nodes import BASE, Node
from tests.node.peers import request_of

LINEAR = CostCurve(((1, 0.01), (64, 0.64)))
FLAT = CostCurve(((1, 0.01), (64, 0.01)))
WIDE: Sequence[Node] = [
    Node(BASE, 10, 0.6),
    Node(0, 11, 0.6),
    Node(1, 12, 0.6),
    Node(BASE, 20, 0.3),
    Node(3, 21, 0.5),
]


class NoChannel:
    """A client that is never told anything."""

    peer_id = "c"

    def post(self, message: Message) -> bool:
        raise AssertionError(f"{message} was posted")


class Serving:
    """Requests that decode, with the same drafts each."""

    def __init__(self, count: int, *, curve: CostCurve = FLAT, pool_tokens: int = 4096, **policy: Any) -> None:
        self.engine = ScriptedEngine(vocab_tokens=64, pool_tokens=pool_tokens)
        self.requests = ServedRequests()
        self.failed: list[CosineError] = []
        self.rows = PassRows(
            self.requests,
            engine=self.engine,
            curve=curve,
            policy=Policy(**policy),
            budget_tokens=64,
            is_ordered=True,
            fail=lambda request, error: self.failed.append(error),
        )
        self.decoding = [self._decoding(number) for number in range(count)]

    def _decoding(self, number: int) -> VerifierRequest:
        asked = request_of("c", prompt=(number, 1), max_new_tokens=20)
        sequence = self.engine.open(sampling=asked.sampling, prompt_tokens=2)
        request = VerifierRequest(
            NoChannel(), number, asked, Pacing.FREE, 1, KvState(sequence), [9], admission=number
        )
        self.requests.add(request)
        row = request.prefill_row(2)
        self.engine.forward([row])
        self.engine.keep(sequence, row.nodes)
        request.note_fed(2)
        request.stage = RequestStage.DECODE
        request.tree.attach(request.tree.root.digest, request.tree.position, WIDE, [1] * len(WIDE))
        return request

    def fed(self) -> list[list[int]]:
        """The tokens of the next pass, by request."""
        return [list(row.tokens) for _, row in self._forward()]

    def _forward(self) -> Rows:
        rows = self.rows.next_rows()
        self.engine.forward([row for _, row in rows])
        return rows


def test_the_pending_token_is_fed_once_and_what_follows_it_hangs_below_it() -> None:
    serving = Serving(1, max_nodes=2)
    assert serving.fed() == [[9, 10, 11]]
    assert serving.fed() == [[20, 12]]
    assert serving.fed() == [[21]]
    assert serving.fed() == []


def test_who_waits_for_a_pass_comes_first() -> None:
    serving = Serving(2)
    first, second = serving.decoding
    serving.engine.forward([first.decode_row([])])
    [(one, _), (other, _)] = serving.rows.next_rows()
    assert (one, other) == (second, first)


def test_drafts_stretch_a_pass_by_little() -> None:
    # Each token costs as much as the one before.
    assert Serving(1, curve=LINEAR).fed() == [[9]]
    assert [len(tokens) for tokens in Serving(4, curve=LINEAR).fed()] == [2, 1, 1, 1]


def test_only_the_best_path_is_fed_where_the_policy_says_so() -> None:
    serving = Serving(1, only_best_path=True)
    assert serving.fed() == [[9, 10, 11, 12]]
    assert serving.fed() == []


def test_drafts_take_nobody_s_pages() -> None:
    serving = Serving(3, pool_tokens=48)
    [(first, _), *_] = serving.rows.next_rows()
    assert first is serving.decoding[0]
    assert serving.rows.preempted == 0
    assert not serving.failed


@pytest.mark.parametrize("is_pending_fed", [False, True])
def test_a_stepped_request_gets_the_pass_it_asked_for_and_no_other(is_pending_fed: bool) -> None:
    serving = Serving(1)
    [request] = serving.decoding
    request.pacing = Pacing.STEPPED
    if is_pending_fed:
        serving.engine.forward([request.decode_row([])])
    assert bool(serving.fed()) is not is_pending_fed
