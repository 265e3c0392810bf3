"""Starts the demo's nodes, races its prompts, and collects the report."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any, Final

from cosine_engine import zoo
from cosine_node.demo.race import OPTIONS, Race, RacedPrompt, RacedWay
from cosine_node.demo.report import EmulatedDevices, RaceReport, SharedMachine
from cosine_node.passes.emulation import Emulation
from cosine_p2p import AsyncClient
from cosine_p2p.request.options import GenerationOptions
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import CosineError
from cosine_protocol.records import Role
from cosine_terminal.events import STAGES
from cosine_terminal.waiting import WaitingLine, columns_of, telling_stages

START_SILENCE_S: Final = 150.0
"""Timeout of each stage: all nodes load PyTorch and their models at once, perhaps on two cores."""
LOOK_S: Final = 1.0
STOP_TIMEOUT_S: Final = 15.0
"""Longer than a node takes to leave the DHT."""
MAX_LINE_BYTES: Final = 1 << 20
SEED: Final = 1
"""With one seed for all lanes their texts are equal at every temperature."""
SETTLE_S: Final = 0.2
"""Pause between races: a drafter goes on for a moment after its release."""
LAYERS: Final = {zoo.Family.TOY: 8, zoo.Family.SMOL: 30}
"""The number of layers of the families' targets."""
ASKED: Final = 4
"""Questions to the real family, each of which takes some 12 s in three ways."""
STAGE_MEMORY: Final = "1GiB"
"""Far more than a part of either target and its KV cache take."""
Say = Callable[[str], None]
Offer = Callable[[str, str], Awaitable[None]]
"""Called after the races with the address of a node and the target."""
Show = Callable[[Race | RacedPrompt], None]
"""Called with a race at each progress, and with its result."""


LOG_LINES: Final = 12


class NodeDied(CosineError):
    """A node ended too early. The message contains the end of its log."""


@dataclass(slots=True, eq=False)
class NodeProcess:
    """A `cosine-node` child process.

    ready, stopped: The first and the last event of each of its nodes.
    stage: The present stage of its start.
    took_s: Seconds of each stage, summed over its models.
    """

    name: str
    process: asyncio.subprocess.Process
    log: Path
    ready: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[dict[str, Any]] = field(default_factory=list)
    stage: str = "starting"
    took_s: dict[str, float] = field(default_factory=dict)
    _read_bytes: int = 0

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], folder: Path, *, gives_way: bool = False
    ) -> "NodeProcess":
        """Start `cosine-node` with these arguments on loopback; logs and identity lie in `folder`.

        One that `gives_way` has a low priority, if this system has `nice`.
        """
        log = folder / f"{name}.log"
        command = (
            *((nice,) if gives_way and (nice := which("nice")) else ()),
            *(sys.executable, "-m", "cosine_node", *arguments),
            *("--host-maddr", "/ip4/127.0.0.1/tcp/0", "--identity", str(folder / f"{name}.key")),
            *("--log-format", "json"),
        )
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=MAX_LINE_BYTES
            )
        return cls(name, process, log)

    async def wait_ready(self, nodes: int = 1) -> None:
        """Wait until `nodes` nodes of the process are ready. Raises `NodeDied`."""
        assert self.process.stdout is not None
        loop = asyncio.get_running_loop()
        heard_bytes, heard_s = 0, loop.time()
        while len(self.ready) < nodes:
            try:
                async with asyncio.timeout(LOOK_S):
                    line = await self.process.stdout.readline()
            except TimeoutError:
                self.look()
                if self._read_bytes > heard_bytes:
                    heard_bytes, heard_s = self._read_bytes, loop.time()
                if loop.time() - heard_s > START_SILENCE_S:
                    said = f"{self.name} is not ready, and has reported no progress for {START_SILENCE_S:g} s."
                    raise NodeDied(f"{said}\n{self.last_words()}") from None
                continue
            if not line:
                raise NodeDied(f"{self.name} ended before it was ready.\n{self.last_words()}")
            event = json.loads(line)
            if event["event"] == "ready":
                self.ready.append(event)

    def look(self) -> None:
        with self.log.open("rb") as log:
            log.seek(self._read_bytes)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        for line in whole.splitlines():
            event = _event_of(line)
            name = str(event.get("event"))
            if name in STAGES:
                self.stage = name
            elif name == "took":
                stage = str(event["stage"])
                self.took_s[stage] = self.took_s.get(stage, 0.0) + float(event["seconds"])

    def last_words(self) -> str:
        """The end of its log as indented text, without events of the start."""
        lines: list[str] = []
        for line in self.log.read_bytes().splitlines():
            event = _event_of(line)
            if event.get("event") == "log":
                told = f"{event['level']} {event['logger']}: {event['message']}"
                lines += [told, *str(event.get("traceback", "")).splitlines()]
            elif not event:
                lines.append(line.decode("utf-8", "replace"))
        return "\n".join(f"    {line}" for line in lines[-LOG_LINES:] or [f"It said nothing while {self.stage}."])

    @property
    def maddrs(self) -> list[str]:
        return list(self.ready[0]["maddrs"])

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after a timeout."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                out, _ = await self.process.communicate()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            return
        for line in out.splitlines():
            event = json.loads(line)
            if event.get("event") == "stopped":
                self.stopped.append(event)


def _event_of(line: bytes) -> dict[str, Any]:
    """The event on a line of a log. Empty for other output."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) and "event" in event else {}


@dataclass(frozen=True, slots=True)
class Cast:
    """The models of a swarm on this machine.

    On emulated devices each way has its own verifier, and all race at once. Otherwise the ways take turns at one
    verifier, or at the head of `stages` parts of the target.

    emulation: Of stages and drafters, and of the links of all nodes.
    verifier_options: Further options of `join`.
    own_drafters: Drafters instead of the family's.
    """

    family: zoo.Family
    emulation: Emulation | None
    verifier_options: tuple[str, ...] = ()
    own_drafters: tuple[str, ...] | None = None
    stages: int = 0

    @property
    def has_emulated_verifiers(self) -> bool:
        return not self.stages and self.emulation is not None and self.emulation.has_device

    @property
    def target(self) -> str:
        return f"zoo:{zoo.target_of(self.family)}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The layers of each stage, as FIRST:END."""
        layers = LAYERS[self.family]
        cuts = [layers * number // self.stages for number in range(self.stages + 1)] if self.stages else []
        return tuple(f"{first}:{end}" for first, end in pairwise(cuts))

    @property
    def new_tokens(self) -> int:
        """Default number of new tokens; real devices get fewer, because they are slower."""
        return 96 if self.has_emulated_verifiers else 40

    @property
    def temperatures(self) -> tuple[float, ...]:
        return (0.0, 0.8) if self.has_emulated_verifiers else (0.0,)

    @property
    def drafters(self) -> tuple[str, ...]:
        """All drafters of the family, unless some are given."""
        if self.own_drafters is not None:
            return self.own_drafters
        return tuple(f"zoo:{name}" for name in zoo.names(self.family)[1:])

    @property
    def prompts(self) -> tuple[zoo.Prompt, ...]:
        """One prompt of each domain for the toy family, typical questions for the other."""
        if self.family is zoo.Family.SMOL:
            return zoo.asked_by_people()[:ASKED]
        return tuple(zoo.prompts(domain)[0] for domain in zoo.DOMAINS)


@dataclass(slots=True)
class DemoNodes:
    peer: str
    verifiers: list[NodeProcess]
    drafters: NodeProcess | None

    @property
    def serving(self) -> Mapping[RacedWay, str]:
        own = self.verifiers if len(self.verifiers) > 1 else self.verifiers * len(RacedWay)
        return {way: node.ready[0]["peer_id"] for way, node in zip(RacedWay, own, strict=True)}

    @property
    def domains(self) -> Mapping[str, str]:
        ready = self.drafters.ready if self.drafters else []
        return {event["peer_id"]: event["model"].rpartition("-")[2] for event in ready}


async def run_demo(
    cast: Cast,
    *,
    max_new_tokens: int,
    temperatures: Sequence[float],
    say: Say,
    show: Show,
    offer: Offer | None = None,
) -> RaceReport:
    """Start verifiers and drafters as processes, and generate each prompt in all ways.

    `offer` is awaited before they are stopped.
    """
    emulation = cast.emulation if cast.has_emulated_verifiers else None
    with tempfile.TemporaryDirectory(prefix="cosine-demo-") as folder:
        async with running_nodes(cast, Path(folder), say) as nodes:
            rows = []
            async with AsyncClient([nodes.peer], memory=False, target=cast.target) as client:
                for temperature in temperatures:
                    for number, prompt in enumerate(cast.prompts):
                        race = Race(prompt=prompt, temperature=temperature, max_new_tokens=max_new_tokens)
                        # Rotate the order, so that no way profits from it.
                        first = number % len(RacedWay)
                        order = [*RacedWay, *RacedWay][first : first + len(RacedWay)]
                        rows.append(await _run_race(client, race, nodes, emulation, order, show))
                        show(rows[-1])
                        await asyncio.sleep(SETTLE_S)
            if offer is not None:
                await offer(nodes.peer, cast.target)
        if emulation is None:
            rtt_ms = cast.emulation.rtt_ms if cast.emulation else 0.0
            machine = SharedMachine(cast.target, cast.stages, rtt_ms, len(nodes.domains), os.cpu_count() or 1)
            return RaceReport(tuple(rows), machine)
        processes = [*nodes.verifiers, *([nodes.drafters] if nodes.drafters else [])]
        stopped = [event for node in processes for event in node.stopped]
        devices = EmulatedDevices(
            emulation.describe(),
            sum(event["passes"] for event in stopped),
            sum(event["late_passes"] for event in stopped),
            len(stopped) == len(nodes.verifiers) + len(nodes.domains),
        )
    return RaceReport(tuple(rows), devices)


async def _run_race(
    client: AsyncClient,
    race: Race,
    nodes: DemoNodes,
    emulation: Emulation | None,
    order: Sequence[RacedWay],
    show: Show,
) -> RacedPrompt:
    """Race one prompt: all ways at once with emulation, else one after the other."""
    done: dict[RacedWay, Generation] = {}

    async def run_lane(way: RacedWay) -> None:
        lane = race.lanes[way]
        options: GenerationOptions = {
            **OPTIONS[way],
            "verifier": nodes.serving[way],
            "temperature": race.temperature,
            "seed": SEED,
            "max_new_tokens": race.max_new_tokens,
        }
        loop = asyncio.get_running_loop()
        run = await client.start(race.prompt.asked, **options)
        began_s = loop.time()
        async for chunk in run.chunks():
            lane.add(chunk, nodes.domains, seconds=loop.time() - began_s)
            show(race)
        lane.done = done[way] = run.result()
        show(race)

    if emulation is not None:
        async with asyncio.TaskGroup() as lanes:
            for way in RacedWay:
                lanes.create_task(run_lane(way))
    else:
        # Fill the prefix cache, which else only the later lanes would use.
        await client.generate(race.prompt.asked, strategy="plain", max_new_tokens=1)
        for way in order:
            await run_lane(way)
            await asyncio.sleep(SETTLE_S)
    return RacedPrompt(
        prompt=race.prompt,
        temperature=race.temperature,
        pass_s=emulation.curve(Role.VERIFIER).seconds(1) if emulation else None,
        done=done,
    )


@asynccontextmanager
async def running_nodes(cast: Cast, folder: Path, say: Say) -> AsyncIterator[DemoNodes]:
    """Run a bootstrap node, the stages, the verifiers, and one process with all drafters."""
    started: list[NodeProcess] = []

    async def start(name: str, *arguments: str, gives_way: bool = False) -> NodeProcess:
        started.append(await NodeProcess.start(name, arguments, folder, gives_way=gives_way))
        return started[-1]

    try:
        names, who = ["verifier"], "one verifier"
        if cast.has_emulated_verifiers:
            names, who = [f"verifier {way.value}" for way in RacedWay], "a verifier for each way"
        elif cast.stages:
            names, who = ["head"], f"{cast.stages} stages and their head"
        count = len(cast.drafters)
        beside = f"{count} drafter{'s' if count > 1 else ''} in one process" if count else "no drafters"
        say(f"Starting {who} with {cast.target}, and {beside} ...")
        bootstrap = await start("bootstrap", "bootstrap")
        await bootstrap.wait_ready()
        emulated = ("--emulate", cast.emulation.name) if cast.emulation else ()
        peers = ("--initial-peers", bootstrap.maddrs[0])
        for number, layers in enumerate(cast.parts, 1):
            part = ("--model", cast.target, "--layers", layers, "--memory", STAGE_MEMORY)
            await start(f"stage {number}", "join", "--role", "stage", *part, *emulated, *peers)
        serving = ("join", "--role", "verifier", "--model", cast.target, *cast.verifier_options, *emulated, *peers)
        if cast.stages:
            serving = (*serving, "--over-stages")
        verifiers = [await start(name, *serving) for name in names]
        models = [word for drafter in cast.drafters for word in ("--model", drafter)]
        drafting = ("join", "--role", "drafter", *models, "--target", cast.target, *emulated, *peers)
        # Over stages, volunteers' drafters have separate machines, which this one cannot emulate.
        drafters = await start("drafters", *drafting, gives_way=bool(cast.stages)) if models else None
        await wait_for_all({node: len(cast.drafters) if node is drafters else 1 for node in started[1:]}, say)
        with blaming_the_dead(started):
            yield DemoNodes(bootstrap.maddrs[0], verifiers, drafters)
    finally:
        await asyncio.gather(*(node.stop() for node in started))


async def wait_for_all(nodes: Mapping[NodeProcess, int], say: Say) -> None:
    """Wait for processes, each with its number of nodes, and show their stages. Raises `NodeDied`."""

    async def wait(node: NodeProcess, count: int) -> None:
        await node.wait_ready(count)
        node.look()
        took = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in node.took_s.items())
        node.stage = "serving"
        say(f"{node.name}: ready; {took}")

    def stages() -> str:
        waited_for = [node for node in nodes if len(node.ready) < nodes[node]]
        for node in waited_for:
            node.look()
        return ", ".join(f"{node.name}: {node.stage}" for node in waited_for) or "Joining"

    line = WaitingLine(sys.stderr)
    # The group cancels all readers before the processes are stopped.
    try:
        # Without a terminal there would be a line for each stage.
        told = telling_stages(line, stages) if columns_of(sys.stderr) else nullcontext()
        async with told, asyncio.TaskGroup() as waiting:
            for node, count in nodes.items():
                waiting.create_task(wait(node, count))
    except* NodeDied as died:
        raise died.exceptions[0] from None
    finally:
        line.end()


@contextmanager
def blaming_the_dead(started: Sequence[NodeProcess]) -> Iterator[None]:
    """Raise `NodeDied` with the logs if a client fails after a node has ended."""
    try:
        yield
    except* CosineError as failed:
        error = failed.exceptions[0]
        gone = [node for node in started if node.process.returncode is not None]
        if not gone:
            raise error from None
        ends = "\n".join(
            f"{node.name} ended with code {node.process.returncode}:\n{node.last_words()}" for node in gone
        )
        raise NodeDied(f"{error}\n{ends}") from error
