"""The state of a swarm for the page, and the difference of two states."""

import json
from typing import Any

import pytest

from cosine_gateway.page.swarm_facts import changes, swarm_facts, way_to
from cosine_node.advice.own_machine import OwnMachine
from cosine_p2p.survey import NodeSight, Survey
from cosine_protocol.records import NetworkCoordinate, Role
from tests.cosine_p2p.samples import identity_of, record_of, stage_offer


def sight(number: int, *, reason: str = "", rtt_s: float = 0.0123, **record: Any) -> NodeSight:
    made = record_of(identity_of(number), now_s=1000.0, **record)
    return NodeSight(record=made, reason=reason) if reason else NodeSight(record=made, rtt_s=rtt_s, requests=2)


def facts(*nodes: NodeSight, **notes: Any) -> dict[str, Any]:
    return swarm_facts(Survey(target="zoo:target", nodes=nodes, problem=""), OwnMachine(), **notes)


def test_a_node_says_what_it_is_and_what_is_known_of_it_here() -> None:
    verifier = sight(1, role=Role.VERIFIER, coordinate=NetworkCoordinate(1500, -2500, 0, 300, 200))
    drafter = sight(2, role=Role.DRAFTER, expertise=("code",))
    notes: dict[str, Any] = {"convicted": [verifier.record.peer_id], "checks": {verifier.record.peer_id: 3}}
    silent = sight(3, reason="no answer within 4 s")
    first, second, third = facts(verifier, drafter, silent, **notes)["nodes"]
    assert third["reason"] == "no answer within 4 s" and third["rtt_ms"] is None
    assert (first["is_convicted"], first["checks"]) == (True, 3)
    assert first["coordinate"] == {"x_ms": 1.5, "y_ms": -2.5, "z_ms": 0.0, "height_ms": 0.3, "error": 0.2}
    assert (first["rtt_ms"], first["load"]) == (12.3, 2)
    assert (second["is_convicted"], second["checks"]) == (False, None)
    assert second["expertise"] == ["code"]


def test_layers_that_nobody_holds_have_no_holder() -> None:
    held = sight(1, role=Role.STAGE, stage=stage_offer(0, 3, layers=5))
    lost = sight(2, role=Role.STAGE, stage=stage_offer(3, 5, layers=5), reason="gone")
    (kind,) = facts(held, lost)["coverage"]
    assert kind["holders"] == [1, 1, 1, 0, 0]


OWN = f"/ip4/10.0.0.2/tcp/1/p2p/{identity_of(1).peer_id}"
RELAYS = f"/ip4/10.0.0.1/tcp/1/p2p/{identity_of(2).peer_id}/p2p-circuit/p2p/{identity_of(1).peer_id}"


@pytest.mark.parametrize(
    ("addresses", "way"), [((), ""), ((OWN,), "direct"), ((RELAYS,), "relayed"), ((RELAYS, OWN), "direct")]
)
def test_a_node_with_addresses_of_relays_alone_is_relayed(addresses: tuple[str, ...], way: str) -> None:
    assert way_to(addresses) == way


def test_changes_lead_to_the_later_state() -> None:
    before = facts(sight(1), sight(2), sight(4, reason="away"), sight(5), sight(6))
    after = facts(sight(1, reason="gone"), sight(2, rtt_s=0.5), sight(3), sight(4), sight(6))
    told = changes(before, after)
    assert told["gone"] == [before["nodes"][3]["peer_id"]] and changes(after, after) == {}
    assert {"peer_id": before["nodes"][1]["peer_id"], "rtt_ms": 500.0} in told["nodes"]
    assert before["nodes"][4]["peer_id"] not in {node["peer_id"] for node in told["nodes"]}
    nodes = {node["peer_id"]: node for node in before["nodes"] if node["peer_id"] not in told.get("gone", [])}
    for node in told["nodes"]:
        nodes[node["peer_id"]] = nodes.get(node["peer_id"], {}) | node
    assert nodes == {node["peer_id"]: node for node in after["nodes"]}
    assert json.loads(json.dumps(told)) == told
