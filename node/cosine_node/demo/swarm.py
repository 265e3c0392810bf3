"""Starts the demo's nodes, races its prompts, and collects the report."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cosine_node import zoo
from cosine_node.demo.processes import NodeProcess
from cosine_node.demo.race import OPTIONS, Race, RacedPrompt, Way
from cosine_node.demo.report import PassTiming, Report
from cosine_node.emulation import Emulation
from cosine_p2p import AsyncClient
from cosine_p2p.options import GenerationOptions
from cosine_protocol.records import Role

TARGET: Final = "zoo:target"
"""The model of the verifiers and the target of all drafters."""
SEED: Final = 1
"""Any: all lanes have the same, so their texts are equal at every temperature."""
SETTLE_S: Final = 0.2
"""A drafter goes on for a moment after its release; the next race should not pay for it."""
Say = Callable[[str], None]
Show = Callable[[Race | RacedPrompt], None]
"""Is given a race whenever it has gone on, and its result in the end."""


async def run_demo(
    emulation: Emulation, *, max_new_tokens: int, temperatures: Sequence[float], say: Say, show: Show
) -> Report:
    """Start a verifier for each way and all embedded drafters as processes; race every prompt in all ways at once.

    The verifiers are apart, so that no way waits for another's passes.
    """
    with tempfile.TemporaryDirectory(prefix="cosine-demo-") as folder:
        async with _nodes(emulation, Path(folder), say) as (peer, verifiers, drafters):
            domains = {event["peer_id"]: event["model"].rpartition("-")[2] for event in drafters.ready}
            serving = dict(zip(Way, verifiers, strict=True))
            rows = []
            async with AsyncClient([peer], target=TARGET, dtype="float32") as client:
                for temperature in temperatures:
                    for domain in zoo.DOMAINS:
                        race = _race_of(domain, temperature, max_new_tokens)
                        rows.append(await _run_race(client, race, serving, domains, emulation, show))
                        show(rows[-1])
                        await asyncio.sleep(SETTLE_S)
        stopped = [event for node in (*verifiers, drafters) for event in node.stopped]
        timing = PassTiming(
            sum(event["passes"] for event in stopped),
            sum(event["late_passes"] for event in stopped),
            len(stopped) == len(verifiers) + len(domains),
        )
    return Report(tuple(rows), emulation.describe(), timing)


def _race_of(domain: str, temperature: float, max_new_tokens: int) -> Race:
    prompt = zoo.prompts(domain)[0].asked
    shown = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return Race(domain=domain, prompt=shown, temperature=temperature, max_new_tokens=max_new_tokens)


async def _run_race(
    client: AsyncClient,
    race: Race,
    serving: Mapping[Way, NodeProcess],
    domains: Mapping[str, str],
    emulation: Emulation,
    show: Show,
) -> RacedPrompt:
    """All lanes at once, each at a verifier of its own."""
    loop = asyncio.get_running_loop()
    prompt = zoo.prompts(race.domain)[0].asked

    async def run_lane(way: Way) -> None:
        lane = race.lanes[way]
        options: GenerationOptions = {
            **OPTIONS[way],
            "verifier": serving[way].ready[0]["peer_id"],
            "temperature": race.temperature,
            "seed": SEED,
            "max_new_tokens": race.max_new_tokens,
        }
        run = await client.start(prompt, **options)
        began_s = loop.time()
        async for chunk in run.chunks():
            lane.add(chunk, domains, seconds=loop.time() - began_s)
            show(race)
        lane.done = run.result()
        show(race)

    async with asyncio.TaskGroup() as lanes:
        for way in Way:
            lanes.create_task(run_lane(way))
    done = {way: lane.done for way, lane in race.lanes.items() if lane.done is not None}
    pass_s = emulation.curve(Role.VERIFIER).seconds(1)
    return RacedPrompt(
        domain=race.domain, prompt=race.prompt, temperature=race.temperature, pass_s=pass_s, done=done
    )


@asynccontextmanager
async def _nodes(
    emulation: Emulation, folder: Path, say: Say
) -> AsyncIterator[tuple[str, list[NodeProcess], NodeProcess]]:
    """The address of a bootstrap node, a verifier for each way, and one process with all drafters."""
    started: list[NodeProcess] = []

    async def start(name: str, *arguments: str) -> NodeProcess:
        started.append(await NodeProcess.start(name, arguments, folder))
        return started[-1]

    try:
        say("Starting a verifier for each way, and six drafters in one process ...")
        bootstrap = await start("bootstrap", "bootstrap")
        await bootstrap.wait_ready()
        shared = ("--target", TARGET, "--emulate", emulation.name, "--initial-peers", bootstrap.maddrs[0])
        verifiers = [await start(f"verifier {way.value}", "join", "--role", "verifier", *shared) for way in Way]
        names = zoo.names()[1:]
        models = [word for name in names for word in ("--model", f"zoo:{name}")]
        drafters = await start("drafters", "join", "--role", "drafter", *models, *shared)
        # Whoever is ready says so at once, so that nobody wonders.
        for ready in asyncio.as_completed(
            [_readied(drafters, len(names)), *(_readied(verifier, 1) for verifier in verifiers)]
        ):
            say(f"{await ready}: ready")
        yield bootstrap.maddrs[0], verifiers, drafters
    finally:
        await asyncio.gather(*(node.stop() for node in started))


async def _readied(node: NodeProcess, nodes: int) -> str:
    await node.wait_ready(nodes)
    return node.name
