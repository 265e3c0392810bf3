"""Prometheus metrics of the nodes in a process, read from the counts of their services when scraped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

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
from cosine_protocol.records import Role

LABELS: Final = ("role", "model_name", "peer_id")
"""The labels of every metric of a node; the peer id distinguishes the nodes of a process."""

Kind = type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
KINDS: Final[Mapping[str, Kind]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric and the function that reads it; a mapping has a number for each value of `label`."""

    name: str
    kind: Kind
    text: str
    read: Callable[[Any], float | Histogram | Mapping[str, float]]
    label: str = ""

    def family(self, nodes: Sequence[tuple[tuple[str, ...], object]]) -> Metric:
        """Return the current values of nodes, given with their labels."""
        family: Any = self.kind(self.name, self.text, labels=(*LABELS, *([self.label] if self.label else [])))
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


def table(prefix: str, lines: str) -> tuple[Series, ...]:
    """Metrics by lines of the end of a name, kind, attribute and text. `kind:label` reads a mapping."""
    found = []
    for line in lines.strip().splitlines():
        name, kind, attribute, text = line.split(maxsplit=3)
        kind, _, label = kind.partition(":")
        found.append(Series(f"{prefix}_{name}", KINDS[kind], text, attrgetter(attribute), label))
    return tuple(found)


ObservedPart = tuple[Sequence[Series], object]
"""Metrics, and the part of a node that they are read from."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A node as its metrics see it: the values of `LABELS`, constant facts, and its parts."""

    labels: tuple[str, ...]
    facts: dict[str, str]
    parts: Sequence[ObservedPart]


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """A verifier or drafter that serves at most `max_requests` at once."""

    service: VerifierService | DrafterService
    engine: Engine
    max_requests: int

    @property
    def used_tokens(self) -> int:
        """The tokens in pages that requests hold."""
        return self.service.capacity_tokens - self.engine.free_tokens

    @property
    def refused(self) -> Mapping[str, int]:
        return {code.name.lower(): count for code, count in dict(self.service.counts.refused).items()}

    @property
    def ended(self) -> Mapping[str, int]:
        return dict(self.service.counts.ended)


@dataclass(frozen=True, slots=True)
class StagePool:
    """A stage whose pool holds `pool_tokens`."""

    service: StageService
    pool_tokens: int


HOLDERS: Final = "Other nodes that held the node's record when it was announced last; 0 where none does."
OF_NETWORK: Final = (
    *table("cosine:node", f"record_holders gauge directory.holders {HOLDERS}"),
    *table(
        "libp2p",
        """
        connected_peers gauge transport.connected_peers Peers the network daemon was connected to when last asked.
        open_streams gauge transport.open_streams Streams open now, both ways.
        daemon_restarts counter transport.restarts Restarts of the network daemon.
        """,
    ),
)
OF_REQUESTS: Final = table(
    "cosine:node",
    """
    requests_running gauge service.requests Requests served now.
    requests_places gauge max_requests Requests served at once at most.
    requests_opened counter service.counts.opened Requests taken.
    requests_refused counter:reason refused Requests refused, by reason.
    requests_ended counter:finished_reason ended Requests taken that ended, by how.
    streams gauge service.counts.streams Streams of clients open now.
    passes counter service.progress.steps Forward passes finished.
    passes_failed counter service.counts.passes_failed Passes that failed.
    pass_seconds histogram service.counts.pass_s Time of a pass.
    pass_rows histogram service.counts.pass_rows Requests in a pass.
    kv_capacity_tokens gauge service.capacity_tokens Tokens the KV pool holds.
    kv_used_tokens gauge used_tokens Tokens in pages that requests hold.
    kv_free_tokens gauge engine.free_tokens Tokens that fit, including evictable retained prefixes.
    kv_retained_tokens gauge engine.cached_tokens Tokens of prefixes kept for later requests.
    """,
)
OF_VERIFIERS: Final = table(
    "cosine:verifier",
    """
    requests_waiting gauge waiting Requests taken that wait for room.
    preemptions counter counts.preempted Requests whose pages were taken.
    passes_abandoned counter counts.passes_abandoned Passes stopped because nobody needed them any more.
    prompt_tokens counter progress.prefill_tokens Prompt tokens fed, those fed again included.
    generation_tokens counter counts.committed_tokens Output tokens committed.
    spec_decode_num_received_tokens counter counts.received_nodes Draft nodes received from clients.
    spec_decode_num_draft_tokens counter counts.verified_nodes Draft nodes of drafters fed in a pass.
    spec_decode_num_accepted_tokens counter counts.accepted_nodes Output tokens that were a drafter's.
    home_tokens counter counts.home_nodes Output tokens that the verifier's own drafter drafted.
    audited_tokens counter counts.audited_tokens Output tokens of other verifiers that were audited.
    """,
)
OF_DRAFTERS: Final = (
    *table(
        "cosine:drafter",
        """
        busy counter counts.busy Requests refused because the drafter was busy.
        prompt_tokens counter counts.prompt_tokens Prompt tokens fed.
        spec_decode_num_draft_tokens counter counts.sent_nodes Draft nodes sent.
        text_tokens counter counts.text_tokens Tokens of requests that it drafted for, as reported by clients.
        accepted_tokens counter counts.accepted_tokens Those of these tokens that it drafted.
        offered_positions counter counts.offered_positions Positions of texts for which it sent nodes.
        taken_tokens counter counts.taken_tokens Those of these positions whose token was among its nodes.
        first_choices counter counts.first_choices Tokens committed after its model made a first choice.
        right_first_choices counter counts.right_first_choices Those of these tokens that were its first choice.
        fragments counter counts.sent_fragments Fragments sent.
        fragments_dropped counter counts.dropped_fragments Fragments not sent to clients that read too slowly.
        """,
    ),
    Series(
        "cosine:drafter_let_go",
        CounterMetricFamily,
        "Requests that stopped using the drafter, by reason.",
        lambda drafter: {reason.name.lower(): drafter.counts.let_go[reason] for reason in ReleaseReason},
        label="reason",
    ),
)
OF_STAGES: Final = table(
    "cosine:stage",
    """
    chains gauge service.requests Chains of heads served now.
    chains_opened counter service.passes.counts.opened Chains taken.
    passes counter service.progress.steps Passes finished.
    pass_seconds histogram service.passes.counts.pass_s Time of a stage's pass.
    pass_rows histogram service.passes.counts.pass_rows Requests in it.
    busy_seconds counter service.passes.busy.total_s Time in which passes ran.
    fed_tokens counter service.passes.counts.fed_tokens Tokens in all passes.
    pool_tokens gauge pool_tokens Tokens that the pool of all chains holds.
    room_tokens gauge service.room_tokens Tokens for a new head's chain.
    waiting_bytes gauge service.waiting_bytes Approximate size of the operations that wait for a pass.
    """,
)

INFO: Final = {
    "cosine:node": ("The node's version, target and numerics.", False),
    "cosine:stage": ("The stage's version, target, numerics and layers.", True),
}
"""The metrics of constant facts: their text, and whether they are those of stages."""


class NodeMetrics(Collector):
    """The metrics of the nodes of a process, read at each scrape."""

    def __init__(self, nodes: Sequence[Observed]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
        for name, (text, is_stage) in INFO.items():
            info = InfoMetricFamily(name, text, labels=LABELS)
            for node in self._nodes:
                if (node.labels[0] == Role.STAGE) == is_stage:
                    info.add_metric(node.labels, node.facts)
            if info.samples:
                yield info
        parts: dict[str, tuple[Series, list[tuple[tuple[str, ...], Any]]]] = {}
        for node in self._nodes:
            for table, part in node.parts:
                for series in table:
                    parts.setdefault(series.name, (series, []))[1].append((node.labels, part))
        yield from (series.family(read) for series, read in parts.values())


def registry_of(nodes: Sequence[Observed]) -> CollectorRegistry:
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
