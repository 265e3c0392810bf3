"""The status of a real swarm, the events of a joining node, and the logs of a request."""

import json
from typing import Any

import pytest

from tests.e2e.conftest import DRAFTERS, Swarm
from tests.e2e.nodes import run

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
