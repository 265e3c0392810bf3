"""What the gateway counts itself: who runs, who waits, what was answered."""

from prometheus_client import CollectorRegistry

from cosine_node.gateway.admission import Admission
from cosine_node.gateway.metrics import RequestMetrics

MODEL = "m"


def value(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"cosine:{name}", {"model_name": MODEL})


def test_gauges_follow_the_line() -> None:
    registry = CollectorRegistry()
    admission = Admission(places=1, max_waiting=5)
    requests = RequestMetrics(registry, admission, model_name=MODEL)
    with admission.admitted(3):
        assert (value(registry, "num_requests_running"), value(registry, "num_requests_waiting")) == (0, 3)
    assert value(registry, "num_requests_waiting") == 0
    for status in (200, 200, 503):
        requests.count_response(status)
    assert registry.get_sample_value("cosine:http_responses_total", {"status": "200"}) == 2
