"""An idle node corrects the time of a pass that it tells, and is never in the way of work."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.base import Row
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.idle_passes import FIRST_PAUSE_S, LONGEST_PAUSE_S, IdlePasses
from cosine_node.passes.runner import MIN_PASSES, InlineRunner, Pass, PassSpeed, TimedRunner

BUSY_START = CostCurve(((1, 0.0379), (64, 0.08)))
REAL = CostCurve(((1, 0.0105), (64, 0.08)))
DAY_S = 24 * 3600.0


class Node:
    """What the passes of an idle node need, on a device as fast as `REAL` that was measured as `BUSY_START`."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.speed = PassSpeed(BUSY_START, now_s=0.0)
        self.work = asyncio.Event()
        runner = TimedRunner(InlineRunner(self.engine, REAL), self.speed)
        self.idle_passes = IdlePasses(self.engine, runner, self.speed)

    async def wait(self, *, work_after_s: float) -> float:
        """Wait for work that comes after so long; how much later that is noticed."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + work_after_s
        loop.call_at(due_s, self.work.set)
        await self.idle_passes.wait(self.work)
        return loop.time() - due_s


def test_a_busy_start_is_corrected_without_any_request() -> None:
    async def run() -> float:
        node = Node()
        await node.wait(work_after_s=FIRST_PAUSE_S + 10)
        assert node.speed.refresh(FIRST_PAUSE_S + 10)
        return node.speed.pass_s

    assert run_virtual(run()) == pytest.approx(REAL.seconds(1))


def test_passes_under_the_load_of_before_do_not_hide_what_is_now() -> None:
    async def run() -> float:
        node = Node()
        for _ in range(1000):
            node.speed.note(tokens=1, elapsed_s=0.2)
        await node.wait(work_after_s=FIRST_PAUSE_S + 10)
        assert node.speed.refresh(FIRST_PAUSE_S + 10)
        return node.speed.pass_s

    assert run_virtual(run()) == pytest.approx(REAL.seconds(1))


def test_an_idle_day_costs_little() -> None:
    async def run() -> int:
        node = Node()
        await node.wait(work_after_s=DAY_S)
        return node.engine.passes

    passes = run_virtual(run())
    assert DAY_S / LONGEST_PAUSE_S * MIN_PASSES < passes < 1.3 * DAY_S / LONGEST_PAUSE_S * MIN_PASSES


@given(st.floats(0.0, 3 * FIRST_PAUSE_S))
def test_work_waits_for_one_pass_at_most_and_the_pool_is_whole_again(work_after_s: float) -> None:
    async def run() -> float:
        node = Node()
        free_tokens = node.engine.free_tokens
        late_s = await node.wait(work_after_s=work_after_s)
        assert node.engine.free_tokens == free_tokens
        return late_s

    assert 0.0 <= run_virtual(run()) <= REAL.seconds(1) * 1.001


class BrokenRunner(InlineRunner):
    """Loses every pass."""

    async def forward(self, rows: Sequence[Row]) -> Pass:
        raise RuntimeError("the device is away")


def test_a_pass_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> float:
        node = Node()
        node.idle_passes = IdlePasses(node.engine, BrokenRunner(node.engine, REAL), node.speed)
        return await node.wait(work_after_s=2 * FIRST_PAUSE_S)

    assert run_virtual(run()) == 0.0
    assert "idle" in caplog.text
