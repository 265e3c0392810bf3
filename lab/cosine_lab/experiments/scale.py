"""Swarms of growing size: up to ten thousand live nodes and a thousand clients that all ask at once."""

import asyncio
import gc
import resource
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import log
from multiprocessing import get_context
from statistics import fmean
from typing import Any, Final

import numpy as np

from cosine_lab.experiments.experiment import (
    ExperimentOptions,
    JsonRow,
    ReplayedWorkload,
    Say,
    emulated,
    setup_of,
    shipped_traces,
)
from cosine_lab.experiments.scale_decisions import decision_rows
from cosine_lab.experiments.scale_swarm import Announcers, CellCounts, CountedDht, DecisionTimes, PeakLoads, now_s
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.simulation.letter_codec import LetterCodec
from cosine_lab.simulation.links import LinkModel, LinkTable, seeded
from cosine_lab.simulation.memory_transport import MemoryNetwork
from cosine_lab.simulation.participants import identity_of
from cosine_lab.simulation.scenario import DECISION_S, EngineSource, Scenario
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_lab.simulation.workload import TEST_SPLIT, Task, Workload, workload_of
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.limits import MAX_CELL_OWNERS
from cosine_protocol.records import Role

PEAK_EVERY_S: Final = 0.05
"""A choice: less than a pass of the emulated verifier, so that no load is missed for long."""
POOL_TOKENS: Final = 8_192
"""Room in each engine: what sixteen short requests with their trees take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions(ExperimentOptions):
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
    candidates: tuple[int, ...] = (10, 100, 1_000)
    repeats: int = 300
    processes: int = 1

    @classmethod
    def quick(cls) -> "ScaleOptions":
        return cls(nodes=(20, 90), max_new_tokens=8, source=EngineSource.SCRIPTED, candidates=(10, 100), repeats=5)

    def scenario(self, nodes: int) -> Scenario:
        """The scenario of a swarm of that size."""
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


def run(options: ScaleOptions, *, say: Say) -> JsonRow:
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
        "what": "Clients that all ask within a few seconds in swarms of growing size, every node of which is live.",
        "setup": {
            **setup_of(options),
            **emulated([options.profile], options.rtt_ms),
            "all_nodes": "are live: each serves, announces itself signed, renews its record and its load",
            "dht": "in memory: real cells, records, signatures and limits, but no routing between storing nodes; "
            "every signature is checked once for all readers",
        },
        "rows": rows,
        "decisions": decisions,
        "findings": findings_of(rows, decisions),
    }


def findings_of(rows: Sequence[JsonRow], decisions: Sequence[JsonRow]) -> JsonRow:
    """Findings; `*_exponent` is b where a figure grows as nodes to the power of b from first to last."""
    first, last, most = rows[0], rows[-1], decisions[-1]
    found: JsonRow = {}
    for name in ("client_bytes_read", "client_cells_read", "stream_bytes_per_client", "records_per_key_max"):
        is_known = first is not last and first[name]
        growth = log(last["nodes"] / first["nodes"])
        found[f"{name}_exponent"] = log(last[name] / first[name]) / growth if is_known else 0.0
    return {
        **found,
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


def run_size(scenario: Scenario) -> JsonRow:
    """One row. All but `*_us`, `*wall_s`, `cpu_s` and `peak_mb` follows from the scenario alone."""
    began_s = time.perf_counter()
    # There is little garbage in cycles, and each look for it goes through the whole swarm.
    gc.disable()
    try:
        row = run_virtual(_perform(scenario))
    finally:
        gc.enable()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row | {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time(), "peak_mb": peak_mb}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The end of one request; without a generation the error that ended it."""

    is_match: bool
    seconds: float
    generation: Generation | None
    error: str = ""


def workload_of_size(scenario: Scenario) -> Workload:
    """The traces without their tails, in engines with little memory; or what else the scenario names."""
    if scenario.source != EngineSource.TRACES:
        return workload_of(scenario)
    known = shipped_traces().select(split=TEST_SPLIT, temperature=scenario.temperature, domains=scenario.domains)
    traces = [trace.shortened(scenario.max_new_tokens) for trace in known]
    return ReplayedWorkload(scenario, traces, pool_tokens=POOL_TOKENS)


async def _perform(scenario: Scenario) -> JsonRow:
    """One swarm and its clients, and what is counted of them."""
    began_s = time.perf_counter()
    workload, dht, times, peaks = workload_of_size(scenario), CountedDht(), DecisionTimes(), PeakLoads()
    clients = [identity_of("client", index) for index in range(scenario.clients)]
    links = LinkTable(
        seed=scenario.seed,
        default=LinkModel(one_way_s=scenario.rtt_ms / 2e3),
        send_costs_s={identity.peer_id: scenario.decision_s for identity in clients},
    )
    async with SimulatedSwarm(
        MemoryNetwork(routes=links.route), eos=workload.eos, directory_of=dht.describing
    ) as swarm:
        await _start_nodes(swarm, scenario, workload)
        nodes = [member.identity for member in swarm.members]
        async with _meanwhile(Announcers(dht, swarm.members).run()):
            # At time 0 everybody announces; what is read afterwards is the clients'.
            await asyncio.sleep(PEAK_EVERY_S)
            joined = dht.total(nodes)
            start_wall_s = time.perf_counter() - began_s
            async with _meanwhile(peaks.watch(swarm.members, every_s=PEAK_EVERY_S)):
                kind = times.timed(ALL_STRATEGIES[scenario.strategy])
                rng = seeded(scenario.seed, "arrivals")
                asking = []
                for number, identity in enumerate(clients):
                    await asyncio.sleep(rng.expovariate(scenario.arrivals_per_s))
                    client = await swarm.client(
                        identity=identity, strategies={kind.name: kind}, strategy=kind.name, coordination="client"
                    )
                    asking.append(asyncio.ensure_future(_ask(client, workload.task(number))))
                answers = await asyncio.gather(*asking)
            ended_s = now_s()
        read, announced, sizes = dht.total(clients), dht.total(nodes), dht.records_per_key()
    return {
        "nodes": len(nodes),
        "verifiers": scenario.verifiers,
        "clients": scenario.clients,
        **_served(answers, ended_s),
        "peak_requests_together": peaks.together,
        "peak_requests_at_a_verifier": peaks.verifier,
        "peak_requests_at_a_drafter": peaks.drafter,
        "capacity_requests": scenario.max_requests,
        "drafters_lost_or_busy": times.drafters_lost,
        **_per_peer("client", read, len(clients)),
        **_per_peer("joining_node", joined, len(nodes)),
        "renewals": announced["records_written"] - joined["records_written"],
        "renewal_cells_read": announced["cells_read"] - joined["cells_read"],
        "records_per_key_max": max(sizes),
        "records_per_key_mean": fmean(sizes),
        "keys": len(sizes),
        "decisions": len(times.all_us),
        "decision_p50_us": float(np.percentile(times.all_us, 50)),
        "decision_p95_us": float(np.percentile(times.all_us, 95)),
        "decision_committed_p50_us": float(np.percentile(times.committed_us, 50)),
        "decision_committed_p95_us": float(np.percentile(times.committed_us, 95)),
        "start_wall_s": start_wall_s,
    }


async def _start_nodes(swarm: SimulatedSwarm, scenario: Scenario, workload: Workload) -> None:
    for index in range(scenario.verifiers):
        await swarm.verifier(
            workload.target(index),
            curve=scenario.curve(Role.VERIFIER),
            identity=identity_of("verifier", index),
            max_requests=scenario.max_requests,
        )
    for index in range(scenario.drafters):
        await swarm.drafter(
            workload.drafter(index),
            curve=scenario.curve(Role.DRAFTER, index=index),
            identity=identity_of("drafter", index),
            domain=scenario.domain(index),
            max_requests=scenario.max_requests,
        )


def _served(answers: Sequence[_Answer], ended_s: float) -> JsonRow:
    """The fields of a row on what the clients got, in virtual time."""
    done = [answer.generation for answer in answers if answer.generation is not None]
    seconds = [answer.seconds for answer in answers if answer.generation is not None]
    tokens = sum(generation.tokens for generation in done)
    stream_bytes = sum(generation.bytes_sent + generation.bytes_received for generation in done)
    return {
        "finished": len(done),
        "failed": len(answers) - len(done),
        "errors": sorted({answer.error for answer in answers if answer.error})[:3],
        "mismatches": sum(not answer.is_match for answer in answers),
        "tokens": tokens,
        "tokens_per_s": tokens / ended_s,
        "accepted_per_round": sum(g.accepted for g in done) / max(1, sum(g.rounds for g in done)),
        "virtual_s": ended_s,
        "latency_p50_s": float(np.percentile(seconds, 50)) if seconds else 0.0,
        "latency_p95_s": float(np.percentile(seconds, 95)) if seconds else 0.0,
        "failovers": sum(len(generation.verifiers) > 1 for generation in done),
        "distinct_verifiers": len({v.peer_id for generation in done for v in generation.verifiers}),
        "distinct_drafters": len({d.peer_id for generation in done for d in generation.drafters}),
        "stream_bytes_per_client": stream_bytes / max(1, len(done)),
        "stream_bytes_per_token": stream_bytes / max(1, tokens),
    }


def _per_peer(prefix: str, counts: CellCounts, peers: int) -> JsonRow:
    names = ("cells_read", "records_read", "bytes_read", "records_written", "bytes_written")
    return {f"{prefix}_{name}": counts[name] / max(1, peers) for name in names}


async def _ask(client: AsyncClient, task: Task) -> _Answer:
    began_s = now_s()
    try:
        generation = await client.generate(
            LetterCodec().decode(task.prompt),
            max_new_tokens=task.max_new_tokens,
            temperature=task.sampling.temperature,
            seed=task.sampling.seed,
        )
    except GenerationFailed as failed:
        return _Answer(is_match=True, seconds=0.0, generation=None, error=str(failed))
    return _Answer(generation.token_ids == task.stream, now_s() - began_s, generation)


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None, None]:
    """Let something run meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
