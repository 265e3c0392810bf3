"""Runs a scenario in virtual time: clients send requests, faults happen, and results are compared and counted."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.links import seeded
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.simulation.participants import Participants
from cosine_lab.simulation.report import EventLog, RequestEnding, RequestResult, SimulationReport, speedup
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.workload import Task, Workload, workload_of
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.base import StrategyKind
from cosine_protocol.errors import GenerationFailed, UsageError

PLAIN: Final = "plain"
"""The strategy that speedups are measured against."""
GRACE_S: Final = 1.0
"""Margin after the deadline of a request: sessions check the time twice a second."""
SETTLE_S: Final = 12.0
"""Time for nodes to release finished requests, longer than any timeout of the services."""
SETTLE_STEP_S: Final = 0.5
"""The interval of checks meanwhile; virtual time is free, but each check costs."""
LOGGERS: Final = ("asyncio", "cosine_engine", "cosine_p2p", "cosine_node", "cosine_protocol")
"""Loggers whose errors are violations."""


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted; `report` has its measurements, of a comparison with plain those of the first run."""

    def __init__(self, report: SimulationReport) -> None:
        super().__init__()
        self.report = report


def run_scenario(
    scenario: Scenario,
    *,
    strategies: Mapping[str, StrategyKind] | None = None,
    workload: Workload | None = None,
    verifier_options: Mapping[str, Any] | None = None,
    with_plain: bool = False,
    on_request: Callable[[], None] | None = None,
) -> SimulationReport:
    """Run a scenario once; equal arguments give equal reports, wall time apart.

    `strategies` are those a client knows, `workload` replaces the scenario's own, `verifier_options` are fields of
    every verifier's config. `with_plain` runs it a second time with the strategy `plain`, which gives
    `speedup_vs_plain`. `on_request` is called whenever a request has ended. Raises `UsageError` for what cannot be
    run, and `RunInterrupted`.
    """
    known = ALL_STRATEGIES if strategies is None else strategies
    if scenario.strategy not in known:
        raise UsageError(f"There is no strategy {scenario.strategy!r}; choose one of {', '.join(sorted(known))}.")
    workload = workload or workload_of(scenario)
    tasks = [workload.task(number) for number in range(scenario.total_requests)]
    options = verifier_options or {}
    report = _run(_ScenarioRun(scenario, workload, tasks, known, options, on_request))
    if not with_plain:
        return report
    if scenario.strategy == PLAIN:
        return replace(report, speedup_vs_plain=speedup(report, report))
    as_plain = replace(scenario, strategy=PLAIN)
    try:
        plain = _run(_ScenarioRun(as_plain, workload, tasks, ALL_STRATEGIES, options, on_request))
    except KeyboardInterrupt:
        raise RunInterrupted(report) from None
    wall_seconds = report.wall_seconds + plain.wall_seconds
    return replace(report, speedup_vs_plain=speedup(report, plain), wall_seconds=wall_seconds)


def _run(run: "_ScenarioRun") -> SimulationReport:
    began_s = time.perf_counter()
    with _error_log() as errors:
        try:
            report = run_virtual(run.perform())
        except KeyboardInterrupt:
            raise RunInterrupted(replace(run.report(), wall_seconds=time.perf_counter() - began_s)) from None
    return replace(report, errors=tuple(errors), wall_seconds=time.perf_counter() - began_s)


@dataclass(slots=True)
class _Received:
    """The part of one request that a client has received."""

    tokens: list[int] = field(default_factory=list)
    first_s: float = 0.0
    generation: Generation | None = None


@dataclass(slots=True)
class _ScenarioRun:
    """One run of one scenario."""

    scenario: Scenario
    workload: Workload
    tasks: Sequence[Task]
    strategies: Mapping[str, StrategyKind]
    verifier_options: Mapping[str, Any]
    on_request: Callable[[], None] | None
    log: EventLog = field(default_factory=EventLog)
    results: list[RequestResult] = field(default_factory=list)

    async def perform(self) -> SimulationReport:
        scenario = self.scenario
        participants = Participants(scenario, self.workload, self.log, self.verifier_options, self.strategies)
        async with participants.swarm as swarm:
            await participants.start_nodes()
            free_tokens = {id(member): member.engine.free_tokens for member in swarm.members}
            clients = [await participants.client(index) for index in range(scenario.clients)]
            faults = asyncio.ensure_future(participants.run_faults())
            await self._ask_all(participants, clients)
            ended_s = _now_s()
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
            uses = participants.uses()
            settled_s = max(ended_s, participants.settle_s + participants.plan.ends_s)
            leaked = await _settle(lambda: _held_requests(participants, free_tokens), settled_s)
            await swarm.leave_clients()
            leaked += await _settle(lambda: _open_streams(participants), max(_now_s(), settled_s))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        leaked += [f"a task still runs: {task.get_coro()}" for task in others]
        return replace(
            self.report(),
            virtual_seconds=ended_s,
            nodes=uses,
            leaked=tuple(leaked),
            fault_counts=participants.plan.counts(),
            must_finish=participants.must_finish,
        )

    def report(self) -> SimulationReport:
        """Return the report on the finished requests; nodes and faults are only known at the end."""
        return SimulationReport(
            scenario=self.scenario.name,
            strategy=self.scenario.strategy,
            seed=self.scenario.seed,
            digest=self.log.digest,
            virtual_seconds=max((result.began_s + result.seconds for result in self.results), default=0.0),
            wall_seconds=0.0,
            results=tuple(sorted(self.results, key=lambda result: result.number)),
            nodes=(),
            leaked=(),
            errors=(),
            fault_counts={},
            must_finish=False,
        )

    async def _ask_all(self, participants: Participants, clients: Sequence[AsyncClient]) -> None:
        """Send all requests of the remaining clients: one after the other, or as they arrive."""
        scenario = self.scenario

        async def ask_in_turn(index: int) -> None:
            for number in range(index, scenario.total_requests, scenario.clients):
                if index in participants.gone_clients:
                    return
                await self._ask(participants, clients[index], number)

        if not scenario.arrivals_per_s:
            await asyncio.gather(*(ask_in_turn(index) for index in range(scenario.clients)))
            return
        rng = seeded(scenario.seed, "arrivals")
        async with asyncio.TaskGroup() as group:
            for number in range(scenario.total_requests):
                await asyncio.sleep(rng.expovariate(scenario.arrivals_per_s))
                index = number % scenario.clients
                if index not in participants.gone_clients:
                    group.create_task(self._ask(participants, clients[index], number))

    async def _ask(self, participants: Participants, client: AsyncClient, number: int) -> None:
        began_s, received = _now_s(), _Received()
        self.log.note(began_s, "ask", number, self.tasks[number].prompt)
        ending, error = RequestEnding.FINISHED, ""
        try:
            async with asyncio.timeout(self.scenario.timeout_s + GRACE_S):
                await self._generate(client, number, received)
        except GenerationFailed as failed:
            ending, error = RequestEnding.FAILED, str(failed)
        except TimeoutError:
            ending, error = RequestEnding.HUNG, "past its deadline"
        if ending is RequestEnding.FAILED and number % self.scenario.clients in participants.gone_clients:
            ending = RequestEnding.LEFT
        self.log.note(_now_s(), ending.value, number)
        self.results.append(self._result(number, received, ending, error, began_s))
        if self.on_request is not None:
            self.on_request()

    async def _generate(self, client: AsyncClient, number: int, received: _Received) -> None:
        task = self.tasks[number]
        prompt = _CODEC.decode(task.prompt)
        parameters = {name: value for name, value in asdict(task.sampling).items() if value is not None}
        run = await client.start(prompt, max_new_tokens=task.max_new_tokens, **parameters)
        try:
            async with aclosing(run.chunks()) as chunks:
                async for chunk in chunks:
                    received.first_s = received.first_s or _now_s()
                    received.tokens += chunk.token_ids
                    self.log.note(_now_s(), "tokens", number, chunk.token_ids)
        finally:
            received.generation = run.result()

    def _result(
        self, number: int, received: _Received, ending: RequestEnding, error: str, began_s: float
    ) -> RequestResult:
        task, tokens, generation = self.tasks[number], tuple(received.tokens), received.generation
        expected = task.stream if ending is RequestEnding.FINISHED else task.stream[: len(tokens)]
        return RequestResult(
            number=number,
            client=number % self.scenario.clients,
            domain=task.domain,
            strategy=self.scenario.strategy,
            ending=ending,
            error=error,
            is_match=tokens == expected,
            began_s=began_s,
            seconds=_now_s() - began_s,
            first_s=max(0.0, received.first_s - began_s),
            tokens=len(tokens),
            rounds=generation.swarm.rounds if generation else 0,
            drafted=generation.swarm.drafted if generation else 0,
            accepted=generation.swarm.accepted if generation else 0,
            near_ties=generation.swarm.near_ties if generation else 0,
            verifiers=len(generation.swarm.verifiers) if generation else 0,
        )


async def _settle(find: Callable[[], list[str]], from_s: float) -> list[str]:
    """Call `find` until it finds nothing or `SETTLE_S` have passed since `from_s`; return its last findings."""
    while (found := find()) and _now_s() < from_s + SETTLE_S:  # noqa: ASYNC110 - nothing tells when all is freed
        await asyncio.sleep(SETTLE_STEP_S)
    return found


def _held_requests(participants: Participants, free_tokens: Mapping[int, int]) -> list[str]:
    """Return sentences about requests that living nodes still hold; `free_tokens` are initial ones."""
    found = []
    for member in participants.swarm.members:
        if member.is_killed:
            continue
        name = f"{member.role} {member.identity.peer_id}"
        missing = free_tokens.get(id(member), member.engine.free_tokens) - member.engine.free_tokens
        if missing:
            found.append(f"{name} still holds {missing} tokens of its pool")
        if sequences := getattr(member.engine, "open_sequences", 0):
            found.append(f"{name} still has {sequences} open sequences")
        if member.service.requests:
            found.append(f"{name} still serves {member.service.requests} requests")
    return found


def _open_streams(participants: Participants) -> list[str]:
    return [
        f"{member.role} {member.identity.peer_id} still serves {member.wire.open_streams} streams"
        for member in participants.swarm.members
        if member.wire.open_streams
    ]


class _ErrorCollector(logging.Handler):
    """Keeps the first line of every logged error, with its cause."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.lines.append(f"{record.getMessage().splitlines()[0]}{cause}")


@contextmanager
def _error_log() -> Iterator[list[str]]:
    """Collect the errors logged within the context: uncaught exceptions, and failed passes."""
    collector = _ErrorCollector()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(collector)
    try:
        yield collector.lines
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(collector)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


_CODEC: Final = LetterCodec()
