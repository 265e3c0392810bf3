"""Rows of the next pass: first who waits for one, then drafts below what passes under way feed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.fair_pass import CROWD, MAX_JOINED
from cosine_node.verifier.pass_rows import PassRows, PassUnderWay, Rows
from cosine_node.verifier.request import KvState, RequestStage, ServedRequest, VerifierRequest
from cosine_node.verifier.served import ServedRequests
from cosine_protocol.errors import CosineError
from cosine_protocol.messages import Message, Pacing
from cosine_protocol.nodes import BASE, Node
from tests.node.peers import request_of

LINEAR = CostCurve(((1, 0.01), (64, 0.64)))
FLAT = CostCurve(((1, 0.01), (64, 0.01)))
STEEP_AT_FOUR = CostCurve(((1, 0.01), (3, 0.0125), (4, 0.05), (64, 0.5)))
WIDE: Sequence[Node] = [
    Node(BASE, 10, 0.6),
    Node(0, 11, 0.6),
    Node(1, 12, 0.6),
    Node(BASE, 20, 0.3),
    Node(3, 21, 0.5),
]


NO_RESULT: Any = None
"""Nobody waits for the results here."""


class NoChannel:
    """A client that is never told anything."""

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id

    def post(self, message: Message) -> bool:
        raise AssertionError(f"{message} was posted")


class Serving:
    """Requests of these clients that decode, with the same drafts each."""

    def __init__(
        self,
        clients: Sequence[str] | int,
        *,
        curve: CostCurve = FLAT,
        pool_tokens: int = 4096,
        is_ordered: bool = True,
    ) -> None:
        self.engine = ScriptedEngine(vocab_tokens=64, pool_tokens=pool_tokens)
        self.requests = ServedRequests()
        self.failed: list[CosineError] = []
        self.rows = PassRows(
            self.requests,
            engine=self.engine,
            curve=curve,
            budget_tokens=64,
            is_ordered=is_ordered,
            fail=lambda request, error: self.failed.append(error),
        )
        names = ["c"] * clients if isinstance(clients, int) else clients
        self.decoding = [self._decoding(number, client) for number, client in enumerate(names)]

    def _decoding(self, number: int, client: str) -> VerifierRequest:
        asked = request_of(client, prompt=(number, 1), max_new_tokens=20)
        sequence = self.engine.open(sampling=asked.sampling, prompt_tokens=2)
        request = VerifierRequest(
            NoChannel(client),
            number,
            asked,
            KvState(sequence),
            [9],
            pacing=Pacing.FREE,
            authors=1,
            admission=number,
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

    def take_turn(self, *, request_s: float) -> list[ServedRequest]:
        """Who was in the next pass, which takes so much longer for each request but the first."""
        rows = self.rows.next_rows()
        for request, row in rows:
            request.unfeed(row)
        ended = PassUnderWay(rows, (0,) * len(rows), NO_RESULT, 0.0)
        forward_s = FLAT.seconds(1) + request_s * (len(rows) - 1)
        self.rows.note_pass(ended, forward_s=forward_s, ended_s=forward_s)
        return [request for request, _ in rows]

    def _forward(self) -> Rows:
        rows = self.rows.next_rows()
        self.engine.forward([row for _, row in rows])
        return rows


def test_the_pending_token_is_fed_once_and_what_follows_it_hangs_below_it() -> None:
    serving = Serving(1, curve=STEEP_AT_FOUR)
    assert serving.fed() == [[9, 10, 11]]
    assert serving.fed() == [[20, 21, 12]]
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


def test_drafts_take_nobody_s_pages() -> None:
    serving = Serving(3, pool_tokens=48)
    [(first, _), *_] = serving.rows.next_rows()
    assert first is serving.decoding[0]
    assert serving.rows.preempted == 0
    assert not serving.failed


def test_a_crowd_joins_as_seldom_as_its_rows_are_dear() -> None:
    """Each row takes as long as the first, and the curve says they are free."""
    serving = Serving(["greedy"] * 15 + ["modest"], is_ordered=False)
    *crowd, modest = serving.decoding
    served: Counter[int] = Counter()
    rows, passes = 0, 300
    for _ in range(passes):
        taken = serving.take_turn(request_s=FLAT.seconds(1))
        assert modest in taken
        served.update(request.number for request in taken)
        rows += len(taken)
    assert len(served) == 16
    # The shares of both take two rows, by which the crowd's time is measured.
    assert rows <= 1.1 * CROWD * 2 * passes
    assert 0 < min(served[request.number] for request in crowd) < passes / 10


def test_a_crowd_joins_nearly_every_pass_where_its_rows_are_free() -> None:
    serving = Serving(["greedy"] * 15 + ["modest"], is_ordered=False)
    passes = 5 * (MAX_JOINED + 1)
    rows = sum(len(serving.take_turn(request_s=0.0)) for _ in range(passes))
    assert rows == passes / (MAX_JOINED + 1) * (16 * MAX_JOINED + 2)


def test_a_crowd_goes_at_once_where_nobody_else_is_ready() -> None:
    serving = Serving(["greedy"] * 15 + ["modest"], is_ordered=False)
    *crowd, modest = serving.decoding
    assert serving.take_turn(request_s=1.0) == serving.decoding
    assert serving.take_turn(request_s=1.0) == [crowd[0], modest]
    serving.requests.remove(modest)
    assert serving.take_turn(request_s=1.0) == crowd
