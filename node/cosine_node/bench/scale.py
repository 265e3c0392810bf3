"""How far does it go? Swarms of up to ten thousand live nodes and a thousand clients that all ask at once."""

import asyncio
import gc
import resource
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import log
from multiprocessing import get_context
from statistics import fmean, median
from typing import Any, Final

from cosine_node.bench.scale_decisions import decision_rows
from cosine_node.bench.scale_swarm import (
    Announcers,
    CellUse,
    CountedDht,
    DecisionTimes,
    Peaks,
    SmallWorkload,
    now_s,
    prefixed,
    share_of,
)
from cosine_node.simulation.links import LinkModel, LinkTable, seeded
from cosine_node.simulation.participants import identity_of
from cosine_node.simulation.scenario import DECISION_S, EngineSource, Scenario
from cosine_node.simulation.swarm import LetterCodec, Member, SimulatedSwarm
from cosine_node.simulation.traces import TraceSet
from cosine_node.simulation.virtual_loop import run_virtual
from cosine_node.simulation.workload import Task, Workload, workload_of
from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Generation
from cosine_p2p.strategies import STRATEGIES
from cosine_p2p.transport.memory import MemoryNetwork
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.limits import MAX_CELL_OWNERS
from cosine_protocol.records import Role

NAME: Final = "scale"
PEAK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """Sizes of the swarms and their load: one node in `nodes_per_verifier` verifies, all others draft.

    There is one client to `nodes_per_client` nodes; each asks once, all within `arrival_window_s` virtual seconds.
    `candidates` and `repeats` are of the benchmark of decisions.
    """

    nodes: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000)
    nodes_per_verifier: int = 20
    nodes_per_client: int = 10
    arrival_window_s: float = 1.0
    max_new_tokens: int = 24
    source: str = EngineSource.TRACES
    rtt_ms: float = 20.0
    profile: str = "60/6"
    seed: int = 0
    candidates: tuple[int, ...] = (10, 100, 1_000)
    repeats: int = 300
    processes: int = 1

    @classmethod
    def quick(cls) -> "ScaleOptions":
        """A small form for tests."""
        return cls(nodes=(20, 90), max_new_tokens=8, source=EngineSource.SCRIPTED, candidates=(10, 100), repeats=5)

    def scenario(self, nodes: int) -> Scenario:
        """What is asked of a swarm of that size."""
        verifiers = max(1, nodes // self.nodes_per_verifier)
        clients = max(1, nodes // self.nodes_per_client)
        return Scenario(
            name=f"scale-{nodes}",
            seed=self.seed,
            verifiers=verifiers,
            drafters=nodes - verifiers,
            clients=clients,
            requests=1,
            arrivals_per_s=clients / self.arrival_window_s,
            source=self.source,
            rtt_ms=self.rtt_ms,
            profile=self.profile,
            max_new_tokens=self.max_new_tokens,
        )


def run(options: ScaleOptions, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Every size in a process of its own, so that each row's memory is its own; then the decisions."""
    rows = []
    with ProcessPoolExecutor(
        options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as processes:
        for row in processes.map(run_size, (options.scenario(nodes) for nodes in options.nodes)):
            rows.append(row)
            say(
                f"{row['nodes']} nodes, {row['clients']} clients: {row['finished']} finished, "
                f"{row['tokens']} tokens in {row['virtual_s']:.1f} virtual s, {row['wall_s']:.0f} s of work"
            )
    decisions = decision_rows(STRATEGIES["cosine"], candidates=options.candidates, repeats=options.repeats)
    for row in decisions:
        say(f"choosing among {row['candidates']}: {row['rank_verifiers_us'] + row['pick_drafters_us']:.0f} us")
    return {
        "name": NAME,
        "what": "Clients that all ask within a few seconds in swarms of growing size, every node of which is live.",
        "command": f"cosine-node bench {NAME}",
        "setup": _setup(options),
        "rows": rows,
        "decisions": decisions,
        "findings": findings(rows, decisions),
    }


def _setup(options: ScaleOptions) -> dict[str, Any]:
    return {
        "emulated": {
            "profile_verifier_ms/drafter_ms": options.profile,
            "rtt_ms_of_every_pair": options.rtt_ms,
            "client_decision_ms_per_write": 1e3 * DECISION_S,
        },
        "engines": "the embedded models, replayed" if options.source == EngineSource.TRACES else options.source,
        "nodes": "all live: each serves, announces itself signed, renews its record and its load",
        "dht": "in memory: real cells, records, signatures and limits, but no routing between storing nodes; every "
        "signature is checked once for all readers",
        "nodes_per_verifier": options.nodes_per_verifier,
        "nodes_per_client": options.nodes_per_client,
        "requests_per_client": 1,
        "arrival_window_s": options.arrival_window_s,
        "max_new_tokens": options.max_new_tokens,
        "strategy": "cosine",
        "seed": options.seed,
    }


def findings(rows: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows say: `*_exponent` is b where a figure grows as nodes to the power of b from first to last."""
    first, last, most = rows[0], rows[-1], decisions[-1]
    grown = ("client_bytes_read", "client_cells_read", "stream_bytes_per_client", "records_per_key_max")
    return {
        **{f"{name}_exponent": _exponent(first, last, name) for name in grown},
        "largest": {
            name: last[name] for name in ("nodes", "clients", "tokens", "virtual_s", "wall_s", "cpu_s", "peak_mb")
        },
        "all_finished": all(row["finished"] == row["clients"] for row in rows),
        "mismatches": sum(row["mismatches"] for row in rows),
        "records_per_key_max": max(row["records_per_key_max"] for row in rows),
        "records_per_key_limit": MAX_CELL_OWNERS,
        "choosing_candidates": most["candidates"],
        "choosing_us": most["rank_verifiers_us"] + most["pick_drafters_us"],
        "strategy_decision_p50_us": last["decision_p50_us"],
        "strategy_decision_p95_us": last["decision_p95_us"],
        "charged_per_write_us": 1e6 * DECISION_S,
    }


def _exponent(first: Mapping[str, Any], last: Mapping[str, Any], name: str) -> float:
    if first is last or not first[name]:
        return 0.0
    return log(last[name] / first[name]) / log(last["nodes"] / first["nodes"])


def run_size(scenario: Scenario) -> dict[str, Any]:
    """One row. All but `*_us`, `*wall_s`, `cpu_s` and `peak_mb` follows from the scenario alone."""
    began_s = time.perf_counter()
    with _without_collections():
        row = run_virtual(_Stage(scenario).perform())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row | {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time(), "peak_mb": peak_mb}


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without looking for garbage in cycles, of which there is little: each look goes through the whole swarm."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class _Heard:
    """How one request ended."""

    is_match: bool
    seconds: float
    generation: Generation | None
    error: str = ""


def _workload(scenario: Scenario) -> Workload:
    if scenario.source == EngineSource.TRACES:
        return SmallWorkload(scenario, TraceSet.load_shipped())
    return workload_of(scenario)


class _Stage:
    """One swarm, its clients, and what is counted."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._workload = _workload(scenario)
        self._dht = CountedDht()
        self._times = DecisionTimes()
        self._peaks = Peaks()
        self._clients = [identity_of("client", index) for index in range(scenario.clients)]

    async def perform(self) -> dict[str, Any]:
        began_s = time.perf_counter()
        async with SimulatedSwarm(
            MemoryNetwork(routes=self._links().route),
            eos=self._workload.eos,
            directory_of=self._dht.describing,
        ) as swarm:
            await self._start_nodes(swarm)
            async with _running(Announcers(self._dht, swarm.members).run()):
                # At time 0 everybody announces; what is read afterwards is the clients'.
                await asyncio.sleep(PEAK_EVERY_S)
                joined = _total([self._dht.uses[member.identity.peer_id] for member in swarm.members])
                started_wall_s = time.perf_counter() - began_s
                async with _running(self._peaks.watch(swarm.members, every_s=PEAK_EVERY_S)):
                    heard = await self._ask_all(swarm)
                ended_s = now_s()
            return self._row(swarm.members, joined, heard, ended_s) | {"start_wall_s": started_wall_s}

    async def _start_nodes(self, swarm: SimulatedSwarm) -> None:
        scenario = self._scenario
        for index in range(scenario.verifiers):
            await swarm.verifier(
                self._workload.target(index),
                curve=scenario.curve(Role.VERIFIER),
                identity=identity_of("verifier", index),
                max_requests=scenario.max_requests,
            )
        for index in range(scenario.drafters):
            await swarm.drafter(
                self._workload.drafter(index),
                curve=scenario.curve(Role.DRAFTER, index=index),
                identity=identity_of("drafter", index),
                domain=scenario.domain(index),
                max_requests=scenario.max_requests,
            )

    async def _ask_all(self, swarm: SimulatedSwarm) -> list[_Heard]:
        scenario = self._scenario
        kind = self._times.timed(STRATEGIES[scenario.strategy])
        rng = seeded(scenario.seed, "arrivals")
        asking = []
        for number, identity in enumerate(self._clients):
            await asyncio.sleep(rng.expovariate(scenario.arrivals_per_s))
            client = await swarm.client(identity=identity, strategies={kind.name: kind}, strategy=kind.name)
            asking.append(asyncio.ensure_future(_ask(client, self._workload.task(number))))
        return await asyncio.gather(*asking)

    def _links(self) -> LinkTable:
        scenario = self._scenario
        return LinkTable(
            seed=scenario.seed,
            default=LinkModel(one_way_s=scenario.rtt_ms / 2e3),
            send_costs_s={identity.peer_id: scenario.decision_s for identity in self._clients},
        )

    def _row(
        self, members: Sequence[Member], joined: CellUse, heard: Sequence[_Heard], ended_s: float
    ) -> dict[str, Any]:
        scenario, times, peaks = self._scenario, self._times, self._peaks
        done = [one.generation for one in heard if one.generation is not None]
        seconds = [one.seconds for one in heard if one.generation is not None]
        tokens = sum(generation.tokens for generation in done)
        read = _total([self._dht.uses[identity.peer_id] for identity in self._clients])
        announced = _total([self._dht.uses[member.identity.peer_id] for member in members])
        sizes = self._dht.records_per_key()
        stream_bytes = sum(generation.bytes_sent + generation.bytes_received for generation in done)
        return {
            "nodes": len(members),
            "verifiers": scenario.verifiers,
            "clients": scenario.clients,
            "finished": len(done),
            "failed": len(heard) - len(done),
            "errors": sorted({one.error for one in heard if one.error})[:3],
            "mismatches": sum(not one.is_match for one in heard),
            "tokens": tokens,
            "tokens_per_s": tokens / ended_s,
            "accepted_per_round": sum(g.accepted for g in done) / max(1, sum(g.rounds for g in done)),
            "virtual_s": ended_s,
            "latency_p50_s": share_of(seconds, 0.5),
            "latency_p95_s": share_of(seconds, 0.95),
            "peak_requests_together": peaks.together,
            "peak_requests_at_a_verifier": peaks.verifier,
            "peak_requests_at_a_drafter": peaks.drafter,
            "capacity_requests": scenario.max_requests,
            "failovers": sum(len(generation.verifiers) > 1 for generation in done),
            "drafters_lost_or_busy": times.drafters_lost,
            "distinct_verifiers": len({v.peer_id for generation in done for v in generation.verifiers}),
            "distinct_drafters": len({d.peer_id for generation in done for d in generation.drafters}),
            **dict(prefixed("client", read, per=scenario.clients)),
            **dict(prefixed("joining_node", joined, per=len(members))),
            "renewals": announced.records_written - joined.records_written,
            "renewal_cells_read": announced.cells_read - joined.cells_read,
            "records_per_key_max": max(sizes),
            "records_per_key_mean": fmean(sizes),
            "keys": len(sizes),
            "stream_bytes_per_client": stream_bytes / max(1, len(done)),
            "stream_bytes_per_token": stream_bytes / max(1, tokens),
            "decisions": len(times.all_us),
            "decision_p50_us": median(times.all_us),
            "decision_p95_us": share_of(times.all_us, 0.95),
            "decision_committed_p50_us": median(times.committed_us),
            "decision_committed_p95_us": share_of(times.committed_us, 0.95),
        }


async def _ask(client: AsyncClient, task: Task) -> _Heard:
    began_s = now_s()
    try:
        generation = await client.generate(
            LetterCodec().decode(task.prompt),
            max_new_tokens=task.max_new_tokens,
            temperature=task.sampling.temperature,
            seed=task.sampling.seed,
        )
    except GenerationFailed as failed:
        return _Heard(is_match=True, seconds=0.0, generation=None, error=str(failed))
    return _Heard(generation.token_ids == task.stream, now_s() - began_s, generation)


@asynccontextmanager
async def _running(work: Any) -> AsyncGenerator[None, None]:
    """Let something run meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _total(uses: Sequence[CellUse]) -> CellUse:
    total = CellUse()
    for use in uses:
        total.cells_read += use.cells_read
        total.records_read += use.records_read
        total.bytes_read += use.bytes_read
        total.records_written += use.records_written
        total.bytes_written += use.bytes_written
    return total
