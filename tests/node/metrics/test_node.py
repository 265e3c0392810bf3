"""A scrape says what the nodes of a process have counted by then, each under its own labels."""

import random

from prometheus_client import CollectorRegistry, generate_latest

from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.metrics.node import LABELS, NodeCollector, ObservedNode, node_registry
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import ErrorCode
from tests.node.metrics.observed import observed
from tests.swarm.reference import draft_engine, prompt_of, target_engine

TOKENS = 24
PROMPT = prompt_of(random.Random("metrics")) * 8


def value(registry: CollectorRegistry, node: ObservedNode, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {**dict(zip(LABELS, node.labels, strict=True)), **labels})


def generated() -> tuple[Generation, list[ObservedNode]]:
    async def run() -> tuple[Generation, list[ObservedNode]]:
        async with SimulatedSwarm() as swarm:
            verifier = observed(await swarm.verifier(target_engine()))
            drafters = [observed(await swarm.drafter(draft_engine(0.9, seed)), model_name="d") for seed in (0, 1)]
            generation = await (await swarm.client()).generate(PROMPT, max_new_tokens=TOKENS)
            return generation, [verifier, *drafters]

    return run_virtual(run())


def test_a_verifiers_figures() -> None:
    generation, (verifier, *_) = generated()
    registry = CollectorRegistry()
    registry.register(NodeCollector([verifier]))
    spec = "cosine:verifier_spec_decode_num"
    counts = [
        value(registry, verifier, f"{spec}_{what}_tokens_total") for what in ("accepted", "draft", "received")
    ]
    assert counts[0] == generation.accepted
    assert sorted(map(float, filter(None, counts))) == counts
    for name, expected in (
        ("cosine:node_requests_opened_total", 1),
        ("cosine:node_requests_running", 0),
        ("cosine:node_requests_places", 16),
        ("cosine:verifier_requests_waiting", 0),
        ("cosine:verifier_generation_tokens_total", TOKENS),
        ("cosine:verifier_prompt_tokens_total", len(PROMPT)),
        ("cosine:node_passes_total", verifier.service.progress.steps),
        ("cosine:node_pass_seconds_count", verifier.service.progress.steps),
        ("cosine:node_pass_rows_sum", verifier.service.progress.steps),
        ("cosine:node_kv_capacity_tokens", verifier.service.capacity_tokens),
        ("cosine:node_kv_free_tokens", verifier.service.capacity_tokens),
        ("cosine:node_kv_used_tokens", 0),
        ("libp2p_connected_peers", 4),
        ("libp2p_open_streams", 2),
        ("libp2p_daemon_restarts_total", 1),
        ("cosine:node_record_holders", 15),
    ):
        assert value(registry, verifier, name) == expected, name
    assert value(registry, verifier, "cosine:node_requests_ended_total", finished_reason="length") == 1
    # What the request leaves behind may be adopted by the next one of this client.
    assert value(registry, verifier, "cosine:node_kv_retained_tokens") == (len(PROMPT) + TOKENS) // 16 * 16
    facts = {"version": "v", "target": "zoo:target", "numerics": "scripted"}
    assert value(registry, verifier, "cosine:node_info", **facts) == 1


def test_drafters_of_one_process_are_told_apart() -> None:
    generation, (_, *drafters) = generated()
    registry = CollectorRegistry()
    registry.register(NodeCollector(drafters))
    names = [
        f"cosine:drafter_{name}_total" for name in ("spec_decode_num_draft_tokens", "fragments", "prompt_tokens")
    ]
    for node in drafters:
        assert all(value(registry, node, name) for name in names)
        assert value(registry, node, "cosine:drafter_live_acceptance", weights="since") == 0.75
    assert sum(value(registry, node, names[0]) or 0 for node in drafters) >= generation.drafted
    text = generate_latest(registry).decode()
    assert text.count("# TYPE cosine:drafter_busy_total counter") == 1
    assert "cosine:verifier" not in text


def test_buckets_add_up() -> None:
    _, (verifier, *_) = generated()
    registry = CollectorRegistry()
    registry.register(NodeCollector([verifier]))
    buckets = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "cosine:node_pass_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == verifier.service.progress.steps


def test_a_scrape_reads_what_is_true_then() -> None:
    _, (verifier, *_) = generated()
    registry = node_registry([verifier])
    verifier.service.counts.refused[ErrorCode.OVERLOADED] += 3
    assert value(registry, verifier, "cosine:node_requests_refused_total", reason="overloaded") == 3
    assert registry.get_sample_value("process_cpu_seconds_total") is not None
