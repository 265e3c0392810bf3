"""Runners in threads and virtual time, pacing, the announced time of a pass, and idle passes."""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.passes.idle_passes import FIRST_PAUSE_S, IdlePasses
from cosine_node.passes.runner import (
    MIN_CHANGE,
    MIN_INTERVAL_S,
    MIN_PASSES,
    NICENESS,
    PacedRunner,
    Pass,
    PassSpeed,
    ThreadRunner,
    TimedRunner,
    in_ending_thread,
)
from cosine_protocol.request import Sampling
from tests.scenes import in_virtual_time

CURVE = CostCurve(((1, 0.1), (4, 0.4)))


class NotingEngine(ScriptedEngine):
    thread = ""
    niceness = 0

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self.thread = threading.current_thread().name
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return super().forward(rows)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_passes_take_a_share_of_the_time_and_cost_their_pauses(share: float) -> None:
    async def passes() -> tuple[list[Pass], float]:
        engine = ScriptedEngine()
        runner = ThreadRunner(engine, share=share)
        began_s = asyncio.get_running_loop().time()
        done = [await runner.forward([row_of(engine)]) for _ in range(20)]
        took_s = asyncio.get_running_loop().time() - began_s
        runner.close()
        return done, took_s

    done, took_s = asyncio.run(passes())
    assert share * sum(each.elapsed_s for each in done) / took_s <= share
    plain = ScriptedEngine()
    assert [each.results for each in done] == [plain.forward([row_of(plain)]) for _ in range(20)]
    assert CURVE.at_share(share).seconds(4) == 0.4 / share


class SlowRunner:
    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = list(seconds)
        self.is_closed = False

    async def forward(self, rows: Sequence[Row]) -> Pass:
        elapsed_s = self.seconds.pop(0)
        await asyncio.sleep(elapsed_s)
        return Pass([], elapsed_s)

    def abandon(self) -> None:
        return

    def close(self) -> None:
        self.is_closed = True


def row_of(engine: ScriptedEngine, tokens: int = 2) -> Row:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=tokens)
    return Row(sequence, (1,) * tokens, tuple(range(tokens)), tuple(range(-1, tokens - 1)), scored_from=tokens - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_drafts_give_way_to_the_rest_of_the_machine() -> None:
    usual, low = NotingEngine(), NotingEngine()

    async def run() -> None:
        for engine, gives_way in ((usual, False), (low, True)):
            runner = ThreadRunner(engine, gives_way=gives_way)
            await runner.forward([row_of(engine)])
            runner.close()

    asyncio.run(run())
    assert usual.niceness < NICENESS == low.niceness


def test_engines_beside_each_other_share_a_thread_and_none_stays_from_loading() -> None:
    """With a team of PyTorch's workers for each thread passes took 1.6 times as long on two cores."""
    target, home = NotingEngine(), NotingEngine()

    async def run() -> str:
        loading = await in_ending_thread(threading.current_thread)
        runner = ThreadRunner(target)
        for each in (runner, ThreadRunner(home, beside=runner)):
            await each.forward([row_of(target if each is runner else home)])
        loading.join(timeout=10)
        assert not loading.is_alive()
        runner.close()
        return loading.name

    assert asyncio.run(run()).startswith("loading")
    assert target.thread == home.thread


@in_virtual_time
async def test_a_paced_pass_lasts_the_curve_or_longer_and_lateness_is_counted() -> None:
    loop = asyncio.get_running_loop()
    inner = SlowRunner([0.03, 0.25, 0.1])
    paced = PacedRunner(inner, CURVE)
    rows = [row_of(ScriptedEngine(), tokens=1)]
    for lasts_s, late_passes in ((0.1, 0), (0.25, 1), (0.1, 1)):
        began_s = loop.time()
        done = await paced.forward(rows)
        assert loop.time() - began_s == pytest.approx(lasts_s)
        assert done.elapsed_s == pytest.approx(lasts_s)
        assert paced.late_passes == late_passes
    paced.close()
    assert inner.is_closed


MEASURED = CostCurve(((1, 0.04), (64, 0.08)))
START_S = 1000.0
LATER_S = START_S + MIN_INTERVAL_S


def speed_after(*ratios: float, tokens: int = 1) -> PassSpeed:
    speed = PassSpeed(MEASURED, now_s=START_S)
    for ratio in ratios:
        speed.note(tokens, ratio * MEASURED.seconds(tokens))
    return speed


def test_a_busy_start_is_corrected_by_the_passes_that_follow() -> None:
    speed = speed_after(*[0.25] * MIN_PASSES, tokens=16)
    assert speed.pass_s == 0.04
    assert speed.refresh(LATER_S)
    assert round(speed.pass_s, 6) == 0.01
    assert not speed.refresh(LATER_S + 2 * MIN_INTERVAL_S)


@given(st.lists(st.floats(0.05, 20.0), max_size=300), st.floats(0.0, 300.0))
def test_what_is_told_has_changed_by_a_fifth_or_not_at_all(ratios: list[float], after_s: float) -> None:
    speed = speed_after(*ratios)
    has_changed = speed.refresh(START_S + after_s)
    assert has_changed is (speed.pass_s != 0.04)
    assert not has_changed or abs(speed.pass_s / 0.04 - 1) >= MIN_CHANGE * 0.999
    assert 0.05 * 0.04 * 0.999 <= speed.pass_s <= 20 * 0.04 * 1.001


BUSY_START = CostCurve(((1, 0.0379), (64, 0.08)))
REAL = CostCurve(((1, 0.0105), (64, 0.08)))


class Node:
    """An idle node on a device with the curve `REAL` that was measured as `BUSY_START`."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.speed = PassSpeed(BUSY_START, now_s=0.0)
        self.work = asyncio.Event()
        runner = TimedRunner(InlineRunner(self.engine, REAL), self.speed)
        self.idle_passes = IdlePasses(self.engine, runner, self.speed)

    async def wait(self, *, work_after_s: float) -> float:
        """Wait for work after `work_after_s`. Returns the delay."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + work_after_s
        loop.call_at(due_s, self.work.set)
        await self.idle_passes.wait(self.work)
        return loop.time() - due_s


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
    async def forward(self, rows: Sequence[Row]) -> Pass:
        raise RuntimeError("the device is away")


def test_a_pass_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> float:
        node = Node()
        node.idle_passes = IdlePasses(node.engine, BrokenRunner(node.engine, REAL), node.speed)
        return await node.wait(work_after_s=2 * FIRST_PAUSE_S)

    assert run_virtual(run()) == 0.0
    assert "idle" in caplog.text
