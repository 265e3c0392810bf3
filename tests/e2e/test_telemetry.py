"""Metrics of a running node, and log lines of one request in the logs of all its nodes."""

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cosine_p2p import Client
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import Node, free_port

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Every line of a node's log is JSON."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.thorough
def test_log_lines_of_a_request_join_its_nodes(swarm: Swarm, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="cosine_p2p")
    with Client([swarm.boot.maddr], coordination="client") as client:
        generation = client.generate("Once upon a time there was", max_new_tokens=16)
    (request,) = {
        getattr(record, "request", "") for record in caplog.records if record.name == "cosine_p2p.session.run"
    }
    said = {
        node.name: [line["message"] for line in lines_of(node.log) if line.get("request") == request]
        for node in (swarm.verifier, *swarm.drafters)
    }
    assert [line.partition(": ")[2].partition(",")[0] for line in said["verifier"]] == ["opened", "length"]
    helpers = {report.domain for report in generation.drafters if report.drafted}
    assert helpers <= {name for name, messages in said.items() if "followed" in "".join(messages)}


@pytest.mark.thorough
def test_a_node_serves_its_metrics_to_this_machine(swarm: Swarm, tmp_path: Path) -> None:
    port = free_port()
    arguments = ("join", "--role", "drafter", "--model", "ngram", *swarm.peers, "--metrics-port", str(port))
    node = Node.start("observed", (*arguments, "--network", "alone"), tmp_path)
    try:
        node.wait_ready()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        labels = f'model_name="ngram",peer_id="{node.peer_id}",role="drafter"'
        assert f"cosine:node_requests_places{{{labels}}} 16.0" in text
        assert f"cosine:drafter_spec_decode_num_draft_tokens_total{{{labels}}} 0.0" in text
        assert node.stop() == 0
    finally:
        node.close()
