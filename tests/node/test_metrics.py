"""Metrics are what the service says when scraped, and a taken port is one sentence."""

import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from prometheus_client import REGISTRY

from cosine_node.metrics import serve_metrics
from cosine_p2p.channel import Progress
from cosine_protocol.errors import UsageError


@dataclass
class FakeService:
    """A service as metrics see it."""

    requests: int = 0
    progress: Progress = field(default_factory=Progress)


@pytest.fixture(autouse=True)
def _clean_registry() -> Iterator[None]:
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read(), "utf-8")


def test_a_scrape_reads_the_service() -> None:
    service, port = FakeService(), free_port()
    serve_metrics(port, role="verifier", service=service)
    assert 'cosine_requests_running{role="verifier"} 0.0' in scraped(port)
    service.requests, service.progress = 3, Progress(steps=40, prefill_tokens=500)
    text = scraped(port)
    assert 'cosine_requests_running{role="verifier"} 3.0' in text
    assert 'cosine_passes_total{role="verifier"} 40.0' in text
    assert 'cosine_prefill_tokens_total{role="verifier"} 500.0' in text


def test_a_taken_port_is_one_sentence_and_leaves_nothing_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        for _ in range(2):
            with pytest.raises(UsageError, match=f"port {taken.getsockname()[1]}"):
                serve_metrics(taken.getsockname()[1], role="drafter", service=FakeService())
