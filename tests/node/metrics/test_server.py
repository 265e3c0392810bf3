"""Metrics are served where they were asked for, until the node ends."""

import socket
import urllib.request
from urllib.error import URLError

import pytest
from prometheus_client import CollectorRegistry, Counter

from cosine_node.metrics.node import serving_metrics
from cosine_protocol.errors import UsageError

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
    with pytest.raises(URLError):
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
