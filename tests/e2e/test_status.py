"""The status of a real swarm, the events of a joining node, and the logs of a request."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p import Client
from tests.e2e.conftest import DRAFTERS, Swarm
from tests.e2e.nodes import Node, run

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]


def test_every_node_is_seen_from_another_process(swarm: Swarm) -> None:
    done = run("status", "--json", *swarm.peers)
    assert done.returncode == 0
    assert all(line.endswith(" ...") for line in done.stderr.splitlines()), done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    by_peer = {node["peer_id"]: node for node in seen["nodes"]}
    assert set(by_peer) == {swarm.verifier.peer_id, *(drafter.peer_id for drafter in swarm.drafters)}
    assert seen["nodes"][0]["role"] == "verifier"
    assert {tuple(node["expertise"]) for node in seen["nodes"][1:]} == {(name,) for name in DRAFTERS}
    for node in seen["nodes"]:
        assert (node["reachable"], node["reason"]) == (True, "")
        assert node["numerics"] == ("none" if node["model"] == "ngram" else "float32 deterministic")
        assert node["rtt_ms"] > 0 and node["uptime_s"] > 0
    assert (seen["problem"], seen["target"]) == ("", "zoo:target")


@pytest.mark.thorough
def test_a_node_tells_of_its_start_one_event_a_line(swarm: Swarm, tmp_path: Path) -> None:
    join = ("join", "--role", "drafter", "--model", "ngram", "--threads", "1", *swarm.peers)
    node = Node.start("starting", join, tmp_path).wait_ready()
    assert node.stop() == 0
    started = [json.loads(line) for line in node.log.read_text().splitlines()]
    stages = ["importing", "loading", "measuring", "joining", "announcing", "announced"]
    assert [event["stage"] for event in started if event["event"] == "took"] == stages[:-1]
    told = {event["event"]: event for event in started if event["event"] in stages}
    assert list(told) == stages
    assert told["joining"]["initial_peers"] == [swarm.boot.maddr]
    assert told["announced"]["stored"] is True


@pytest.mark.thorough
def test_log_lines_of_a_request_join_its_nodes(swarm: Swarm, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="cosine_p2p")
    with Client([swarm.boot.maddr], memory=False, coordination="client") as client:
        generation = client.generate("Once upon a time there was", max_new_tokens=16)
    (request,) = {
        getattr(record, "request", "") for record in caplog.records if record.name == "cosine_p2p.session.run"
    }
    said = {
        node.name: [line["message"] for line in logged(node) if line.get("request") == request]
        for node in (swarm.verifier, *swarm.drafters)
    }
    assert [line.partition(": ")[2].partition(",")[0] for line in said["verifier"]] == ["opened", "length"]
    helpers = {report.domain for report in generation.swarm.drafters if report.drafted}
    assert helpers <= {name for name, messages in said.items() if "followed" in "".join(messages)}


def logged(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log.read_text().splitlines()]
