"""Prometheus metrics of a node, read from its service when scraped."""

from typing import Protocol

from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cosine_p2p.channel import Progress
from cosine_protocol.errors import UsageError


class Observed(Protocol):
    """What is read of a service."""

    @property
    def progress(self) -> Progress: ...

    @property
    def requests(self) -> int: ...


class _NodeCollector(Collector):
    def __init__(self, role: str, service: Observed) -> None:
        self._role = role
        self._service = service

    def collect(self) -> list[Metric]:
        requests = GaugeMetricFamily("cosine_requests_running", "Requests served now.", labels=["role"])
        requests.add_metric([self._role], self._service.requests)
        passes = CounterMetricFamily("cosine_passes", "Forward passes run.", labels=["role"])
        passes.add_metric([self._role], self._service.progress.steps)
        prefill = CounterMetricFamily("cosine_prefill_tokens", "Prompt tokens fed.", labels=["role"])
        prefill.add_metric([self._role], self._service.progress.prefill_tokens)
        return [requests, passes, prefill]


def serve_metrics(port: int, *, role: str, service: Observed) -> None:
    """Serve `/metrics` on a port. Raises `UsageError` if it is taken."""
    try:
        start_http_server(port)
    except OSError as error:
        raise UsageError(f"Metrics cannot be served on port {port} ({error.strerror}); choose another.") from None
    REGISTRY.register(_NodeCollector(role, service))
