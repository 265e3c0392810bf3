"""Requests that wait for their constraint: one result each, a limit, and cancellation."""

import asyncio
from typing import Any

import pytest

from cosine_node.verifier.preparations import MOST, Preparations
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Constraint, ConstraintKind
from tests.scenes import in_real_time

CONSTRAINT = Constraint(ConstraintKind.REGEX, "a", (0,))


class Waiting:
    """Preparations whose grammars compile nothing before `go_on`, and each result: None, or an error code."""

    def __init__(self) -> None:
        self.preparations = Preparations()
        self.grammars: Any = self
        self.told: list[tuple[Any, int, ErrorCode | None]] = []
        self._let_go = asyncio.Event()

    async def prepare(self, constraint: Constraint) -> None:
        await self._let_go.wait()

    def begin(self, channel: Any, number: int) -> None:
        def note(error: PeerError | None) -> None:
            self.told.append((channel, number, None if error is None else ErrorCode(error.code)))

        self.preparations.begin(channel, number, self.grammars, CONSTRAINT, note)

    async def go_on(self) -> None:
        self._let_go.set()
        for _ in range(5):
            await asyncio.sleep(0)


@in_real_time
async def test_a_number_waits_once_and_not_too_many_wait() -> None:
    waiting = Waiting()
    for number in range(MOST):
        waiting.begin("a", number)
    for channel, number, code in (("a", 3, ErrorCode.MALFORMED), ("b", 3, ErrorCode.OVERLOADED)):
        with pytest.raises(PeerError) as refused:
            waiting.begin(channel, number)
        assert refused.value.code == code
    await waiting.go_on()
    assert [number for _, number, _ in waiting.told] == list(range(MOST))


@in_real_time
async def test_who_cancels_or_leaves_is_told_nothing_and_holds_up_nobody() -> None:
    waiting = Waiting()
    left: Any = "a"
    for number in (1, 2, 3):
        waiting.begin(left, number)
    waiting.begin("b", 1)
    assert waiting.preparations.cancel(left, 2) and not waiting.preparations.cancel(left, 2)
    waiting.preparations.cancel_all(left)
    waiting.begin(left, 3)
    await waiting.go_on()
    assert waiting.told == [("b", 1, None), (left, 3, None)]
