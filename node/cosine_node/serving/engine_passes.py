"""The passes of a node's engine: how they run, what they cost, and the wait for work between them."""

import asyncio
import time
from dataclasses import dataclass
from typing import Self

from cosine_engine.base import Engine
from cosine_engine.curve import CostCurve
from cosine_engine.models.served import ServedModel
from cosine_engine.models.unloading import ModelMemory, WaitForWork
from cosine_engine.openai.engine import ServerEngine
from cosine_node.chains.chain import StageChain
from cosine_node.passes.idle_passes import IdlePasses
from cosine_node.passes.runner import PacedRunner, PassSpeed, Runner, ServedEngine, ThreadRunner, TimedRunner
from cosine_node.serving.options import RoleOptions
from cosine_p2p.transport.channel import StepCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePasses:
    """The passes of an engine.

    runner: Runs them.
    curve: Their cost; over stages that of the slowest stage, which limits their rate.
    speed: The announced time of a pass over one token.
    thread: The thread that they run in. None: they run over stages.
    wait_while_loaded: Waits for work while the model is in memory.
    memory: Gives the model's memory back. None: the model stays loaded.
    """

    engine: Engine
    runner: Runner
    curve: CostCurve
    speed: PassSpeed
    thread: ThreadRunner | None = None
    wait_while_loaded: WaitForWork = asyncio.Event.wait
    memory: ModelMemory | None = None

    @classmethod
    def of_model(cls, served: ServedModel, options: RoleOptions) -> Self:
        """The passes of a whole model in this process."""
        engine, emulated = served.engine, options.emulated_curve
        curve = (emulated or served.curve).at_share(options.share)
        speed = PassSpeed(curve, now_s=time.monotonic())
        thread = ThreadRunner(engine, share=options.share)
        runner: Runner = thread
        wait: WaitForWork = asyncio.Event.wait
        if emulated is not None:
            runner = PacedRunner(thread, curve)
        elif not isinstance(engine, ServerEngine):
            # The passes of a server's engine wait for the server, so their times do not tell its pace.
            runner = TimedRunner(thread, speed)
            wait = IdlePasses(engine, runner, speed).wait
        return cls(
            engine=engine,
            runner=runner,
            curve=curve,
            speed=speed,
            thread=thread,
            wait_while_loaded=wait,
            memory=served.memory,
        )

    @classmethod
    def over_stages(cls, chain: StageChain, curve: CostCurve) -> Self:
        """The passes of a head; `curve` is the cost of passes over the whole chain."""
        speed = PassSpeed(curve, now_s=time.monotonic())
        runner = TimedRunner(chain, speed)
        wait = IdlePasses(chain.engine, runner, speed).wait
        return cls(
            engine=chain.engine, runner=runner, curve=chain.pace.slowest, speed=speed, wait_while_loaded=wait
        )

    def served(self, wait_for_work: WaitForWork) -> ServedEngine:
        """The engine as a service uses it, which waits for work by `wait_for_work`."""
        return ServedEngine(
            engine=self.engine,
            runner=self.runner,
            curve=self.curve,
            speed=self.speed,
            wait_for_work=wait_for_work,
        )

    async def wait(self, work: asyncio.Event, progress: StepCounts) -> None:
        """Return when `work` is set and the model is loaded. Until then nothing else may use the engine."""
        if self.memory is None:
            await self.wait_while_loaded(work)
        else:
            await self.memory.wait(work, idle=self.wait_while_loaded, progress=progress)

    def record(self, max_requests: int) -> dict[str, object]:
        """The fields of a node's record that the engine determines."""
        until_loaded_s = 0.0 if self.memory is None else self.memory.until_loaded_s
        return {
            "numerics": self.engine.numerics,
            "capacity_requests": max_requests,
            "context_tokens": self.engine.context_tokens,
            "pass_us": round(1e6 * (self.speed.pass_s + until_loaded_s)),
        }

    def stopped_fields(self, options: RoleOptions) -> dict[str, object]:
        """The fields of the `stopped` event about an emulated device."""
        if not isinstance(self.runner, PacedRunner):
            return {}
        emulated = options.emulation.name if options.emulation else ""
        return {"late_passes": self.runner.late_passes, "emulated": emulated}
