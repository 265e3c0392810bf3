"""A verifier under load in virtual time: clients ask again and again, and everything they wait for is kept."""

import asyncio
import gc
import os
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_lab.experiments.experiment import ExperimentOptions
from cosine_lab.simulation.letter_codec import LetterCodec
from cosine_lab.simulation.swarm import Member, SimulatedSwarm
from cosine_lab.simulation.workload import Task
from cosine_node.engine.base import Engine
from cosine_node.engine.paged import PagedEngine
from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_p2p.client import AsyncClient
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.records import Role

# Values of the options, as they stand in the JSON file.
EMBEDDED: Final = "zoo"
SCRIPTED: Final = "scripted"
PLAIN: Final = "plain"
SETTLE_S: Final = 15.0
"""After this long everything that requests held is given back."""
WARM_UP_SHARE: Final = 0.2
"""A choice: the share of the time before memory is first looked at; caches are full by then."""
STATM: Final = Path("/proc/self/statm")
"""Memory of this process in pages, where the system is Linux (proc(5))."""
_CODEC: Final = LetterCodec()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions(ExperimentOptions):
    """The load: `clients` ask on for `seconds` of virtual time, once with each of `strategies`.

    `models` is zoo or scripted. There are `prompts` different prompts; they have up to `prompt_tokens` tokens but
    for the long ones, their outputs up to `tokens`.
    """

    models: str = EMBEDDED
    strategies: tuple[str, ...] = (PLAIN, "cosine")
    profile: str = DEFAULT_PROFILE
    clients: int = 64
    seconds: float = 600.0
    prompts: int = 40
    prompt_tokens: int = 96
    tokens: int = 96
    temperature: float = 0.8
    pool_tokens: int = 32_768

    @classmethod
    def quick(cls) -> "LoadOptions":
        return cls(
            models=SCRIPTED, clients=4, seconds=6.0, prompts=10, prompt_tokens=16, tokens=12, pool_tokens=4096
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSwarm:
    """The swarm and its load: every client asks for all tasks in turn, and begins with one of its own."""

    options: LoadOptions
    strategy: str
    target: Engine
    drafters: Sequence[Engine]
    tasks: Sequence[Task]


@dataclass(slots=True)
class LoadMeasurement:
    """Figures of clients, in virtual seconds, and of nodes. Bytes are None where the system does not tell.

    `gaps_s` are the times between tokens of one request that came at different moments, `firsts_s` those to the
    first. A text with a near tie in it that is not the reference's counts under `near_ties`.
    """

    # Arrays, for a list of floats would itself be growth of memory.
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    firsts_s: "array[float]" = field(default_factory=lambda: array("d"))
    requests: int = 0
    tokens: int = 0
    mismatches: int = 0
    near_ties: int = 0
    failures: int = 0
    most_held_tokens: int = 0
    left_tokens: int = 0
    warm_bytes: int | None = None
    end_bytes: int | None = None


async def perform(load: LoadedSwarm) -> LoadMeasurement:
    """Run a load to its end; call inside `run_virtual`."""
    measured, emulation = LoadMeasurement(), Emulation.parse(load.options.profile)
    async with SimulatedSwarm(one_way_s=emulation.one_way_s) as swarm:
        verifier = await swarm.verifier(
            load.target, curve=emulation.curve(Role.VERIFIER), max_requests=load.options.clients
        )
        for place, engine in enumerate(load.drafters):
            await swarm.drafter(engine, curve=emulation.curve(Role.DRAFTER), domain=f"expert-{place}")
        room = [member.engine.free_tokens for member in swarm.members]
        clients = [
            await swarm.client(strategy=load.strategy, coordination="client") for _ in range(load.options.clients)
        ]
        beside = [asyncio.ensure_future(swarm.keep_announced()), asyncio.ensure_future(_watch(verifier, measured))]
        warming = asyncio.ensure_future(_look_when_warm(load, measured))
        await asyncio.gather(*(_ask_on(load, place, client, measured) for place, client in enumerate(clients)))
        await warming
        measured.end_bytes = resident_bytes()
        await swarm.leave_clients()
        await asyncio.sleep(SETTLE_S)
        measured.left_tokens = sum(
            before - member.engine.free_tokens for before, member in zip(room, swarm.members, strict=True)
        )
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    return measured


async def _ask_on(load: LoadedSwarm, place: int, client: AsyncClient, measured: LoadMeasurement) -> None:
    number = place
    while asyncio.get_running_loop().time() < load.options.seconds:
        await _ask(client, load.tasks[number % len(load.tasks)], measured)
        number += 1


async def _ask(client: AsyncClient, task: Task, measured: LoadMeasurement) -> None:
    loop = asyncio.get_running_loop()
    asked_s, last_s = loop.time(), None
    measured.requests += 1
    try:
        run = await client.start(
            _CODEC.decode(task.prompt),
            max_new_tokens=task.max_new_tokens,
            temperature=task.sampling.temperature,
            seed=task.sampling.seed,
        )
        async with aclosing(run.chunks()) as chunks:
            async for _ in chunks:
                if last_s is None:
                    measured.firsts_s.append(loop.time() - asked_s)
                elif loop.time() > last_s:
                    measured.gaps_s.append(loop.time() - last_s)
                last_s = loop.time()
    except GenerationFailed:
        measured.failures += 1
        return
    found = run.result()
    measured.tokens += found.tokens
    if found.token_ids != task.stream:
        measured.near_ties += bool(found.near_ties)
        measured.mismatches += not found.near_ties


async def _watch(verifier: Member, measured: LoadMeasurement) -> None:
    """Keep the most tokens that requests held at a time."""
    engine = verifier.engine
    while isinstance(engine, PagedEngine):
        measured.most_held_tokens = max(measured.most_held_tokens, engine.live_tokens)
        await asyncio.sleep(1.0)


async def _look_when_warm(load: LoadedSwarm, measured: LoadMeasurement) -> None:
    await asyncio.sleep(WARM_UP_SHARE * load.options.seconds)
    measured.warm_bytes = resident_bytes()


def resident_bytes() -> int | None:
    """Memory of this process, garbage collected before; None where the system does not tell."""
    gc.collect()
    if not STATM.is_file():
        return None
    return int(STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
