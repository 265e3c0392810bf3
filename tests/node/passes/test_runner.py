"""Runners: away from the loop, on it in virtual time, or paced like a named device, honestly."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.runner import (
    MIN_INTERVAL_S,
    MIN_PASSES,
    InlineRunner,
    PacedRunner,
    Pass,
    PassSpeed,
    ThreadRunner,
    TimedRunner,
    count_tokens,
)
from cosine_protocol.request import Sampling

CURVE = CostCurve(((1, 0.1), (4, 0.4)))


class NotingEngine(ScriptedEngine):
    """Remembers which thread ran it."""

    thread = ""

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self.thread = threading.current_thread().name
        return super().forward(rows)


class SlowRunner:
    """Takes as long as it is told, in the loop's time."""

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


def test_a_thread_runs_the_pass_and_the_loop_goes_on() -> None:
    engine = NotingEngine()

    async def run() -> Pass:
        runner = ThreadRunner(engine)
        done = await runner.forward([row_of(engine)])
        runner.close()
        return done

    done = asyncio.run(run())
    assert engine.thread.startswith("engine")
    assert (len(done.results), done.elapsed_s > 0) == (1, True)


def test_an_error_of_a_pass_reaches_whoever_asked_for_it() -> None:
    async def run() -> None:
        engine = ScriptedEngine()
        runner = ThreadRunner(engine)
        row = row_of(engine)
        engine.release(row.sequence)
        with pytest.raises(Exception, match="not open"):
            await runner.forward([row])
        runner.close()

    asyncio.run(run())


def test_inline_a_pass_lasts_what_the_curve_says() -> None:
    async def run() -> tuple[float, float]:
        engine = ScriptedEngine()
        rows = [row_of(engine), row_of(engine)]
        done = await InlineRunner(engine, CURVE).forward(rows)
        assert count_tokens(rows) == 4
        return done.elapsed_s, asyncio.get_running_loop().time()

    elapsed_s, ended_s = run_virtual(run())
    assert elapsed_s == 0.4
    assert ended_s == pytest.approx(0.4)


def test_a_paced_pass_lasts_the_curve_or_longer_and_lateness_is_counted() -> None:
    async def run() -> None:
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

    run_virtual(run())


def test_pacing_holds_in_real_time() -> None:
    async def run() -> float:
        engine = ScriptedEngine()
        paced = PacedRunner(ThreadRunner(engine), CostCurve(((1, 0.05),)))
        done = await paced.forward([row_of(engine)])
        paced.close()
        return done.elapsed_s

    began_s = time.perf_counter()
    assert asyncio.run(run()) >= 0.049
    assert time.perf_counter() - began_s >= 0.049


def test_passes_that_are_timed_are_told_to_the_speed() -> None:
    engine = ScriptedEngine()
    speed = PassSpeed(CURVE, now_s=0.0)

    async def run() -> None:
        inner = SlowRunner([0.6] * MIN_PASSES)
        timed = TimedRunner(inner, speed)
        for _ in range(MIN_PASSES):
            assert (await timed.forward([row_of(engine)])).elapsed_s == 0.6
        timed.abandon()
        timed.close()
        assert inner.is_closed

    run_virtual(run())
    assert speed.refresh(MIN_INTERVAL_S)
    assert speed.pass_s == pytest.approx(0.3)
