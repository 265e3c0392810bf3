"""Rows of a drafter's pass: round robin, within the budget, with pages."""

from collections.abc import Sequence
from typing import Any, Final

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.draft_tree import Branch, DraftTree
from cosine_node.drafter.request import BUDGET_TOKENS, DraftRows, FollowedRequest
from cosine_p2p.strategy.fusion import Calibration
from cosine_protocol.digests import request_digest
from tests.node.peers import request_of

CURVE: Final = CostCurve(((1, 0.005), (64, 0.020)))
NO_CHANNEL: Any = None


class Following:
    """Requests that have something to draft in every pass."""

    def __init__(self, clients: Sequence[str], *, pool_tokens: int = 1 << 16) -> None:
        self.engine = ScriptedEngine(vocab_tokens=16, pool_tokens=pool_tokens)
        self.rows = DraftRows(self.engine, curve=CURVE, leave=self._leave)
        self.turns = [self._follow(client, number) for number, client in enumerate(clients)]
        self.left: list[FollowedRequest] = []

    def _follow(self, client: str, number: int) -> FollowedRequest:
        request = request_of(client, prompt=(number, 1, 2))
        d_0 = request_digest(request)
        tree = DraftTree(d_0, request.prompt, (), Calibration(first_power=1.0))
        tree.assign(Branch(d_0, depth=64, width=1, window=64))
        sequence = self.engine.open(sampling=request.sampling, prompt_tokens=3)
        return FollowedRequest(NO_CHANNEL, number, request, d_0, tree, sequence, 0.0)

    def _leave(self, one: FollowedRequest) -> None:
        self.left.append(one)
        self.turns.remove(one)
        self.engine.release(one.sequence)

    def draft(self) -> list[FollowedRequest]:
        """One pass; its requests come last afterwards."""
        rows = self.rows.next_rows(self.turns, now_s=0.0)
        for (one, row), result in zip(rows, self.engine.forward([row for _, row in rows]), strict=True):
            one.tree.absorb(row, result.choices)
            self.turns.remove(one)
            self.turns.append(one)
        return [one for one, _ in rows]


def test_a_pass_is_full_at_its_budget_and_a_long_prompt_comes_first_in_its_turn() -> None:
    following = Following(["a", "b"])
    long, short = following.turns
    for one in (long, short):
        one.tree.advance(0, [5] * BUDGET_TOKENS)
    assert following.draft() == [long]
    assert following.draft() == [short]


def test_a_request_for_which_there_are_no_pages_is_left_and_the_others_go_on() -> None:
    following = Following(["a", "b", "c"], pool_tokens=32)
    drafted = following.draft()
    assert following.left
    assert drafted and not set(drafted) & set(following.left)
