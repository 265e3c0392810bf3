"""Prometheus metrics of the nodes in a process, read from the counts of their services when scraped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cosine_engine.base import Engine
from cosine_node.drafter.service import DrafterService
from cosine_node.passes.counts import Histogram
from cosine_node.stages.service import StageService
from cosine_node.verifier.service import VerifierService
from cosine_protocol.draft import ReleaseReason
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_p2p.dht.cells import DhtDirectory
    from cosine_p2p.transport.full.hivemind import HivemindTransport

LABELS: Final = ("role", "model_name", "peer_id")
"""The labels of every metric of a node; the peer id distinguishes the nodes of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A node of any role, as its metrics see it; `facts` about it are constant."""

    role: str
    model_name: str
    peer_id: str
    facts: dict[str, str]
    network: "HivemindTransport"
    directory: "DhtDirectory"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.role, self.model_name, self.peer_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode(Observed):
    """A verifier or drafter that serves at most `max_requests` at once."""

    max_requests: int
    service: VerifierService | DrafterService
    engine: Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStage(Observed):
    """A stage whose pool holds `pool_tokens`."""

    pool_tokens: int
    service: StageService


Kind = type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
Value = float | Histogram | Mapping[str, float]
_Of = TypeVar("_Of")


@dataclass(frozen=True, slots=True)
class Series(Generic[_Of]):
    """One metric and the function that reads it; a mapping has a number for each value of `label`."""

    name: str
    kind: Kind
    text: str
    read: Callable[[_Of], Value]
    label: str | None = None

    def family(self, nodes: Sequence[tuple[tuple[str, ...], _Of]]) -> Metric:
        """Return the current values of nodes, given with their labels."""
        names = LABELS if self.label is None else (*LABELS, self.label)
        family: Any = self.kind(self.name, self.text, labels=names)
        for labels, node in nodes:
            value = self.read(node)
            if isinstance(value, Histogram):
                counts = [float(count) for count in accumulate(value.counts)]
                bounds = [*map(str, value.bounds), "+Inf"]
                family.add_metric(labels, buckets=list(zip(bounds, counts, strict=True)), sum_value=value.total)
            elif isinstance(value, Mapping):
                for name, number in value.items():
                    family.add_metric((*labels, name), number)
            else:
                family.add_metric(labels, value)
        made: Metric = family
        return made


def counter(name: str, text: str, read: Callable[[_Of], Value], label: str | None = None) -> Series[_Of]:
    """Return a metric that only increases."""
    return Series(name, CounterMetricFamily, text, read, label)


def gauge(name: str, text: str, read: Callable[[_Of], Value], label: str | None = None) -> Series[_Of]:
    """Return a metric of a current value."""
    return Series(name, GaugeMetricFamily, text, read, label)


def histogram(name: str, text: str, read: Callable[[_Of], Value]) -> Series[_Of]:
    """Return a metric of a distribution."""
    return Series(name, HistogramMetricFamily, text, read)


# The metrics of all nodes; of verifiers and drafters; of verifiers; of drafters; of stages.
NETWORK: Final[tuple[Series[Observed], ...]] = (
    gauge(
        "cosine:node_record_holders",
        "Other nodes that held the node's record when it was announced last; 0 where none does.",
        lambda n: n.directory.holders,
    ),
    gauge(
        "libp2p_connected_peers",
        "Peers the network daemon was connected to when last asked.",
        lambda n: n.network.connected_peers,
    ),
    gauge("libp2p_open_streams", "Streams open now, both ways.", lambda n: n.network.open_streams),
    counter("libp2p_daemon_restarts", "Restarts of the network daemon.", lambda n: n.network.restarts),
)
NODE: Final[tuple[Series[ObservedNode], ...]] = (
    gauge("cosine:node_requests_running", "Requests served now.", lambda n: n.service.requests),
    gauge("cosine:node_requests_places", "Requests served at once at most.", lambda n: n.max_requests),
    counter("cosine:node_requests_opened", "Requests taken.", lambda n: n.service.counts.opened),
    counter(
        "cosine:node_requests_refused",
        "Requests refused, by reason.",
        lambda n: {code.name.lower(): count for code, count in dict(n.service.counts.refused).items()},
        label="reason",
    ),
    counter(
        "cosine:node_requests_ended",
        "Requests taken that ended, by how.",
        lambda n: dict(n.service.counts.ended),
        label="finished_reason",
    ),
    gauge("cosine:node_streams", "Streams of clients open now.", lambda n: n.service.counts.streams),
    counter("cosine:node_passes", "Forward passes finished.", lambda n: n.service.progress.steps),
    counter("cosine:node_passes_failed", "Passes that failed.", lambda n: n.service.counts.passes_failed),
    histogram("cosine:node_pass_seconds", "Time of a pass.", lambda n: n.service.counts.pass_s),
    histogram("cosine:node_pass_rows", "Requests in a pass.", lambda n: n.service.counts.pass_rows),
    gauge("cosine:node_kv_capacity_tokens", "Tokens the KV pool holds.", lambda n: n.service.capacity_tokens),
    gauge(
        "cosine:node_kv_used_tokens",
        "Tokens in pages that requests hold.",
        lambda n: n.service.capacity_tokens - n.engine.free_tokens,
    ),
    gauge(
        "cosine:node_kv_free_tokens",
        "Tokens that fit, including evictable retained prefixes.",
        lambda n: n.engine.free_tokens,
    ),
    gauge(
        "cosine:node_kv_retained_tokens",
        "Tokens of prefixes kept for later requests.",
        lambda n: n.engine.cached_tokens,
    ),
)
VERIFIER: Final[tuple[Series[VerifierService], ...]] = (
    gauge("cosine:verifier_requests_waiting", "Requests taken that wait for room.", lambda v: v.waiting),
    counter("cosine:verifier_preemptions", "Requests whose pages were taken.", lambda v: v.counts.preempted),
    counter(
        "cosine:verifier_passes_abandoned",
        "Passes stopped because nobody needed them any more.",
        lambda v: v.counts.passes_abandoned,
    ),
    counter(
        "cosine:verifier_prompt_tokens",
        "Prompt tokens fed, those fed again included.",
        lambda v: v.progress.prefill_tokens,
    ),
    counter("cosine:verifier_generation_tokens", "Output tokens committed.", lambda v: v.counts.committed_tokens),
    counter(
        "cosine:verifier_spec_decode_num_received_tokens",
        "Draft nodes received from clients.",
        lambda v: v.counts.received_nodes,
    ),
    counter(
        "cosine:verifier_spec_decode_num_draft_tokens",
        "Draft nodes of drafters fed in a pass.",
        lambda v: v.counts.verified_nodes,
    ),
    counter(
        "cosine:verifier_spec_decode_num_accepted_tokens",
        "Output tokens that were a drafter's.",
        lambda v: v.counts.accepted_nodes,
    ),
    counter(
        "cosine:verifier_home_tokens",
        "Output tokens that the verifier's own drafter drafted.",
        lambda v: v.counts.home_nodes,
    ),
    counter(
        "cosine:verifier_audited_tokens",
        "Output tokens of other verifiers that were audited.",
        lambda v: v.counts.audited_tokens,
    ),
)
DRAFTER: Final[tuple[Series[DrafterService], ...]] = (
    counter("cosine:drafter_busy", "Requests refused because the drafter was busy.", lambda d: d.counts.busy),
    counter("cosine:drafter_prompt_tokens", "Prompt tokens fed.", lambda d: d.counts.prompt_tokens),
    counter("cosine:drafter_spec_decode_num_draft_tokens", "Draft nodes sent.", lambda d: d.counts.sent_nodes),
    counter(
        "cosine:drafter_text_tokens",
        "Tokens of requests that it drafted for, as reported by clients.",
        lambda d: d.counts.text_tokens,
    ),
    counter(
        "cosine:drafter_accepted_tokens",
        "Those of these tokens that it drafted.",
        lambda d: d.counts.accepted_tokens,
    ),
    counter(
        "cosine:drafter_let_go",
        "Requests that stopped using the drafter, by reason.",
        lambda d: {reason.name.lower(): d.counts.let_go[reason] for reason in ReleaseReason},
        label="reason",
    ),
    counter(
        "cosine:drafter_offered_positions",
        "Positions of texts for which it sent nodes.",
        lambda d: d.counts.offered_positions,
    ),
    counter(
        "cosine:drafter_taken_tokens",
        "Those of these positions whose token was among its nodes.",
        lambda d: d.counts.taken_tokens,
    ),
    counter(
        "cosine:drafter_first_choices",
        "Tokens committed after its model made a first choice.",
        lambda d: d.counts.first_choices,
    ),
    counter(
        "cosine:drafter_right_first_choices",
        "Those of these tokens that were its first choice.",
        lambda d: d.counts.right_first_choices,
    ),
    counter("cosine:drafter_fragments", "Fragments sent.", lambda d: d.counts.sent_fragments),
    counter(
        "cosine:drafter_fragments_dropped",
        "Fragments not sent to clients that read too slowly.",
        lambda d: d.counts.dropped_fragments,
    ),
)
STAGE: Final[tuple[Series[ObservedStage], ...]] = (
    gauge("cosine:stage_chains", "Chains of heads served now.", lambda s: s.service.requests),
    counter("cosine:stage_chains_opened", "Chains taken.", lambda s: s.service.passes.counts.opened),
    counter("cosine:stage_passes", "Passes finished.", lambda s: s.service.progress.steps),
    histogram("cosine:stage_pass_seconds", "Time of a stage's pass.", lambda s: s.service.passes.counts.pass_s),
    histogram("cosine:stage_pass_rows", "Requests in it.", lambda s: s.service.passes.counts.pass_rows),
    counter("cosine:stage_busy_seconds", "Time in which passes ran.", lambda s: s.service.passes.busy.total_s),
    counter("cosine:stage_fed_tokens", "Tokens in all passes.", lambda s: s.service.passes.counts.fed_tokens),
    gauge("cosine:stage_pool_tokens", "Tokens that the pool of all chains holds.", lambda s: s.pool_tokens),
    gauge("cosine:stage_room_tokens", "Tokens for a new head's chain.", lambda s: s.service.room_tokens),
    gauge(
        "cosine:stage_waiting_bytes",
        "Approximate size of the operations that wait for a pass.",
        lambda s: s.service.waiting_bytes,
    ),
)


class NodeMetrics(Collector):
    """The metrics of the nodes of a process, read at each scrape."""

    def __init__(self, nodes: Sequence[ObservedNode | ObservedStage]) -> None:
        self._nodes = [node for node in nodes if isinstance(node, ObservedNode)]
        self._stages = [node for node in nodes if isinstance(node, ObservedStage)]

    def collect(self) -> Iterator[Metric]:
        nodes, stages = self._nodes, self._stages
        yield from _info("cosine:node", "The node's version, target and numerics.", nodes)
        yield from _info("cosine:stage", "The stage's version, target, numerics and layers.", stages)
        verifiers = [(n.labels, n.service) for n in nodes if isinstance(n.service, VerifierService)]
        drafters = [(n.labels, n.service) for n in nodes if isinstance(n.service, DrafterService)]
        yield from (each.family([(n.labels, n) for n in nodes]) for each in NODE if nodes)
        yield from (each.family([(s.labels, s) for s in stages]) for each in STAGE if stages)
        yield from (each.family([(n.labels, n) for n in (*nodes, *stages)]) for each in NETWORK)
        yield from (each.family(verifiers) for each in VERIFIER if verifiers)
        yield from (each.family(drafters) for each in DRAFTER if drafters)


def _info(name: str, text: str, nodes: Sequence[Observed]) -> Iterator[Metric]:
    info = InfoMetricFamily(name, text, labels=LABELS)
    for node in nodes:
        info.add_metric(node.labels, node.facts)
    if nodes:
        yield info


def registry_of(nodes: Sequence[ObservedNode | ObservedStage]) -> CollectorRegistry:
    """Return the metrics of nodes and of their process."""
    registry = CollectorRegistry()
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    registry.register(NodeMetrics(nodes))
    return registry


@contextmanager
def serving_metrics(registry: CollectorRegistry, *, host: str, port: int) -> Iterator[int]:
    """Serve a registry in a thread and yield the port; 0 means a free one. Raises `UsageError`."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Metrics cannot be served on {host} port {port} ({reason}); choose another --metrics-port or "
            "--metrics-host."
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
