"""Prometheus metrics of nodes and of generations, over HTTP, and on their page of the documentation."""

import random
import re
import socket
import urllib.request
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from cosine_gateway.metrics import GenerationMetrics
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
from cosine_node.metrics.node import LABELS, Observed, registry_of, serving_metrics
from cosine_p2p.request.origins import Origin
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import ErrorCode, UsageError
from tests.gateway.generations import DONE, generation
from tests.node.metrics.exported import Exported, exported, observed
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, prompt_of, target_engine

TOKENS = 24
PROMPT = prompt_of(random.Random("metrics")) * 8


def value(registry: CollectorRegistry, node: Observed, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {**dict(zip(LABELS, node.labels, strict=True)), **labels})


@cache
@in_virtual_time
async def generated() -> tuple[Generation, SimulatedMember, list[Observed]]:
    async with SimulatedSwarm() as swarm:
        verifier = await swarm.verifier(target_engine())
        drafters = [observed(await swarm.drafter(draft_engine(0.9, seed)), model_name="d") for seed in (0, 1)]
        generation = await (await swarm.client()).generate(PROMPT, max_new_tokens=TOKENS)
        return generation, verifier, [observed(verifier), *drafters]


def test_a_verifiers_figures() -> None:
    generation, member, (verifier, *_) = generated()
    registry = registry_of([verifier])
    spec = "cosine:verifier_spec_decode_num"
    counts = [
        value(registry, verifier, f"{spec}_{what}_tokens_total") for what in ("accepted", "draft", "received")
    ]
    assert counts[0] == generation.swarm.accepted
    assert sorted(map(float, filter(None, counts))) == counts
    for name, expected in (
        ("cosine:node_requests_opened_total", 1),
        ("cosine:node_requests_running", 0),
        ("cosine:node_requests_places", 16),
        ("cosine:verifier_requests_waiting", 0),
        ("cosine:verifier_generation_tokens_total", TOKENS),
        ("cosine:verifier_prompt_tokens_total", len(PROMPT)),
        ("cosine:node_passes_total", member.service.progress.steps),
        ("cosine:node_pass_seconds_count", member.service.progress.steps),
        ("cosine:node_pass_rows_sum", member.service.progress.steps),
        ("cosine:node_kv_capacity_tokens", member.service.capacity_tokens),
        ("cosine:node_kv_free_tokens", member.service.capacity_tokens),
        ("cosine:node_kv_used_tokens", 0),
        ("libp2p_connected_peers", 4),
        ("libp2p_open_streams", 2),
        ("libp2p_daemon_restarts_total", 1),
        ("cosine:node_record_holders", 15),
    ):
        assert value(registry, verifier, name) == expected, name
    assert value(registry, verifier, "cosine:node_requests_ended_total", finished_reason="length") == 1
    # The client's next request may reuse the prefix of this one.
    assert value(registry, verifier, "cosine:node_kv_retained_tokens") == (len(PROMPT) + TOKENS) // 16 * 16
    facts = {"version": "v", "target": "zoo:target", "numerics": "scripted"}
    assert value(registry, verifier, "cosine:node_info", **facts) == 1
    samples = [sample for family in registry.collect() for sample in family.samples]
    buckets = [sample.value for sample in samples if sample.name == "cosine:node_pass_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == member.service.progress.steps
    # A scrape reads current values, including those of the process.
    member.service.counts.refused[ErrorCode.OVERLOADED] += 3
    assert value(registry, verifier, "cosine:node_requests_refused_total", reason="overloaded") == 3
    assert registry.get_sample_value("process_cpu_seconds_total") is not None


def test_drafters_of_one_process_are_told_apart() -> None:
    generation, _, (_, *drafters) = generated()
    registry = registry_of(drafters)
    names = [
        f"cosine:drafter_{name}_total" for name in ("spec_decode_num_draft_tokens", "fragments", "prompt_tokens")
    ]
    for node in drafters:
        assert all(value(registry, node, name) for name in names)
    assert sum(value(registry, node, names[0]) or 0 for node in drafters) >= generation.swarm.drafted
    text = generate_latest(registry).decode()
    assert text.count("# TYPE cosine:drafter_busy_total counter") == 1
    assert "cosine:verifier" not in text


MODEL = "m"


def generation_value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"cosine:{name}", {"model_name": MODEL, **labels})


def test_generations_are_added_up() -> None:
    registry = CollectorRegistry()
    metrics = GenerationMetrics(registry, model_name=MODEL)
    metrics.observe(DONE)
    metrics.observe(generation(finish_reason="stop", seconds=4.5))
    own = {"target": 7, "home": 3, "forced": 6}
    copied = Origin(source="target", is_copied=True, tokens=5)
    origins = (copied, *(Origin(source=source, tokens=tokens) for source, tokens in own.items()))
    metrics.observe(generation(finish_reason="length", origins=origins))
    for name, total in (
        ("prompt_tokens_total", 15),
        ("generation_tokens_total", 63),
        ("spec_decode_num_draft_tokens_total", 120),
        ("spec_decode_num_accepted_tokens_total", 48),
        ("spec_decode_num_rounds_total", 15),
        ("time_to_first_token_seconds_sum", 1.5),
        ("e2e_request_latency_seconds_sum", 9.5),
        ("time_per_output_token_seconds_count", 3),
        ("time_per_output_token_seconds_sum", 0.4),
    ):
        assert generation_value(registry, name) == pytest.approx(total), name
    reasons = [
        generation_value(registry, "request_success_total", finished_reason=reason) for reason in ("stop", "length")
    ]
    assert reasons == [2, 1]
    assert {
        name: generation_value(registry, "generation_tokens_by_origin_total", origin=name)
        for name in ("drafter", "copied", "forced", "home", "target")
    } == {"drafter": 32, "copied": 5, "forced": 6, "home": 3, "target": 17}


HOST = "127.0.0.1"


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
        return str(answer.read(), "utf-8")


def test_a_registry_is_served_and_ends_with_its_block() -> None:
    registry = CollectorRegistry()
    counter = Counter("counted", "So many.", registry=registry)
    with serving_metrics(registry, host=HOST, port=0) as port:
        counter.inc(3)
        assert "counted_total 3.0" in scraped(port)
    # Another process may have got the port.
    with pytest.raises(OSError):
        scraped(port)


@pytest.mark.parametrize("host", [HOST, "192.0.2.1", "no such host"])
def test_a_place_that_cannot_be_is_one_sentence(host: str) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=rf"on {host} port {port} .*--metrics-port"),
            serving_metrics(CollectorRegistry(), host=host, port=port),
        ):
            pass


PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text("utf-8")
ROW = re.compile(r"^\| `((?:cosine:|libp2p_)\w+)(?:\{([\w, ]+)\})?` \| (\w+) \| (.+) \|$", re.MULTILINE)


def test_what_the_tables_name_is_exported() -> None:
    listed = [
        Exported(name, kind, text, frozenset(labels.split(", ")) if labels else frozenset())
        for name, labels, kind, text in ROW.findall(PAGE)
    ]
    assert listed and set(listed) <= set(exported())
