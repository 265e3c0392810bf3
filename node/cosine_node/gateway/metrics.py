"""Prometheus metrics of the gateway itself; those of its generations are `cosine_node.metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from cosine_node.gateway.admission import Admission


class RequestMetrics:
    """Counts HTTP responses, and shows who runs and who waits."""

    def __init__(self, registry: CollectorRegistry, admission: Admission, *, model_name: str) -> None:
        self._responses = Counter(
            "cosine:http_responses", "HTTP responses, by status.", ("status",), registry=registry
        )
        for name, text, count in (
            ("num_requests_running", "Generations under way.", lambda: admission.running),
            ("num_requests_waiting", "Generations that wait for a place.", lambda: admission.waiting),
        ):
            gauge = Gauge(f"cosine:{name}", text, ("model_name",), registry=registry)
            gauge.labels(model_name).set_function(count)

    def count_response(self, status: int) -> None:
        """One more response with this status."""
        self._responses.labels(str(status)).inc()
