"""Prometheus metrics of a stage, read from what its service counts when scraped."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cosine_node.metrics.node import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    LABELS,
    NETWORK,
    DirectoryState,
    NetworkState,
    Series,
)
from cosine_node.stage.service import StageService
from cosine_protocol.layer_range import LayerRange
from cosine_protocol.records import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStage:
    """A stage as its metrics see it; its pool holds `pool_tokens`."""

    model_name: str
    peer_id: str
    target: str
    numerics: str
    version: str
    layers: LayerRange
    pool_tokens: int
    service: StageService
    network: NetworkState
    directory: DirectoryState

    @property
    def labels(self) -> tuple[str, ...]:
        return Role.STAGE, self.model_name, self.peer_id


STAGE: Final[tuple[Series[ObservedStage], ...]] = (
    Series("cosine:stage_chains", GAUGE, "Chains of heads served now.", lambda s: s.service.chains),
    Series("cosine:stage_chains_opened", COUNTER, "Chains taken.", lambda s: s.service.counts.opened),
    Series("cosine:stage_passes", COUNTER, "Passes finished.", lambda s: s.service.progress.steps),
    Series("cosine:stage_pass_seconds", HISTOGRAM, "Time of a stage's pass.", lambda s: s.service.counts.pass_s),
    Series("cosine:stage_pass_rows", HISTOGRAM, "Requests in it.", lambda s: s.service.counts.pass_rows),
    Series("cosine:stage_busy_seconds", COUNTER, "Time in which passes ran.", lambda s: s.service.busy.total_s),
    Series("cosine:stage_fed_tokens", COUNTER, "Tokens in all passes.", lambda s: s.service.counts.fed_tokens),
    Series(
        "cosine:stage_feeds_skipped",
        COUNTER,
        "Passes left out, for nobody wanted them any more.",
        lambda s: s.service.counts.skipped_feeds,
    ),
    Series("cosine:stage_pool_tokens", GAUGE, "Tokens that the pool of all chains holds.", lambda s: s.pool_tokens),
    Series("cosine:stage_room_tokens", GAUGE, "Tokens for a new head's chain.", lambda s: s.service.room_tokens),
    Series(
        "cosine:stage_waiting_bytes",
        GAUGE,
        "About what the operations take that wait for a pass.",
        lambda s: s.service.waiting_bytes,
    ),
)


class StageCollector(Collector):
    """All metrics of a stage."""

    def __init__(self, stage: ObservedStage) -> None:
        self._stage = stage

    def collect(self) -> Iterator[Metric]:
        stage = self._stage
        text = "The stage's version, target, numerics and layers."
        info = InfoMetricFamily("cosine:stage", text, labels=LABELS)
        facts = {"version": stage.version, "target": stage.target, "numerics": stage.numerics}
        info.add_metric(stage.labels, facts | {"layers": f"{stage.layers} of {stage.layers.layers}"})
        yield info
        observed = [(stage.labels, stage)]
        yield from (each.family(observed) for each in STAGE)
        yield from (each.family(observed) for each in NETWORK)


def stage_registry(stage: ObservedStage) -> CollectorRegistry:
    """The stage's metrics and those of its process."""
    registry = CollectorRegistry()
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    registry.register(StageCollector(stage))
    return registry
