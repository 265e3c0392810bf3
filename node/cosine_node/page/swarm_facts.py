"""A swarm for the page: its nodes, the layers that stages hold, and what is lacking, as JSON. Pure.

Texts of other peers are told as they are; whoever shows them must show them as text.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from cosine_node.models.engine_kind import join_options
from cosine_node.stages.coverage import coverage_as_objects
from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.survey import NodeSight, Survey
from cosine_p2p.transport.reach import is_relayed
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.numerics import repeats
from cosine_protocol.records import NodeRecord, Role

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNotes:
    """What this gateway's client knows of others: verifiers that were found wrong, and how many texts of each were
    checked and found right.
    """

    convicted: Collection[str] = ()
    checks: Mapping[str, int] = field(default_factory=dict)


def swarm_facts(survey: Survey, notes: OwnNotes) -> Json:
    reached = [sight.record for sight in survey.nodes if not sight.reason]
    return {
        "target": survey.target,
        "problem": survey.problem,
        "nodes": [node_facts(sight, notes) for sight in survey.nodes],
        "coverage": coverage_as_objects(reached),
        "outlook": outlook_facts(reached),
    }


def outlook_facts(reached: Sequence[NodeRecord]) -> list[Json]:
    """What to expect of the stages of each kind of model; nothing in a gateway without numpy, which chains need."""
    if find_spec("numpy") is None:
        return []
    from cosine_node.chains.outlook import outlook_as_object, outlooks

    return [outlook_as_object(each) for each in outlooks(reached)]


def node_facts(sight: NodeSight, notes: OwnNotes) -> Json:
    """One node: what its record says, what it answered, and what is known of it here."""
    record, stage = sight.record, sight.record.stage
    return {
        "peer_id": record.peer_id,
        "role": record.role,
        "target": record.target,
        "target_digest": record.target_digest.hex(),
        "model": record.model,
        "numerics": record.numerics,
        # Of a drafter nobody needs the same ones.
        "join_options": [] if record.role == Role.DRAFTER else list(join_options(record.numerics)),
        "repeats": repeats(record.numerics),
        "expertise": list(record.expertise),
        "learns": bool(record.learns),
        "software": record.software,
        "emulated": record.emulated,
        "capacity": record.capacity_requests,
        "load": record.load_requests if sight.requests is None else sight.requests,
        "pass_ms": record.pass_us / 1e3,
        "context_tokens": record.context_tokens,
        "addresses": list(record.addresses),
        "way": way_to(record.addresses),
        "coordinate": None if record.coordinate is None else coordinate_facts(record.coordinate),
        "layers": None if stage is None else [stage.first_layer, stage.end_layer, stage.layers],
        "busy": None if stage is None else stage.busy_permille / 1e3,
        # Tenths of a millisecond are noise; each change of one would be told to every page.
        "rtt_ms": None if sight.rtt_s is None else round(1e3 * sight.rtt_s, 1),
        "passes": sight.passes,
        "accepted": sight.accepted,
        "text_tokens": sight.text_tokens,
        "drafts": drafts_sentence(record.four_tokens_permille),
        "reason": sight.reason,
        "checks": notes.checks.get(record.peer_id, 0) if record.role == Role.VERIFIER else None,
        "is_convicted": record.peer_id in notes.convicted,
    }


def way_to(addresses: Sequence[str]) -> str:
    """How a node is reached by its record: `direct`, `relayed` if all addresses are of relays, "" without any."""
    return "" if not addresses else "relayed" if is_relayed(addresses) else "direct"


def coordinate_facts(of: NetworkCoordinate) -> Json:
    """A network coordinate in milliseconds; `error` is from 0 to 1."""
    return {
        "x_ms": of.x_us / 1e3,
        "y_ms": of.y_us / 1e3,
        "z_ms": of.z_us / 1e3,
        "height_ms": of.height_us / 1e3,
        "error": of.error_permille / 1e3,
    }


def changes(before: Json, after: Json) -> Json:
    """What leads from one state of a swarm to a later one: of each node that changed the fields that did.

    Nodes that are new have all their fields, `gone` are the peer ids of those that left; empty if nothing changed.
    """
    old = {node["peer_id"]: node for node in before["nodes"]}
    new = {node["peer_id"]: node for node in after["nodes"]}
    changed = []
    for peer_id, node in new.items():
        known = old.get(peer_id, {})
        if fields := {name: value for name, value in node.items() if name not in known or known[name] != value}:
            changed.append({**fields, "peer_id": peer_id})
    told: Json = {name: value for name, value in after.items() if name != "nodes" and before.get(name) != value}
    if changed:
        told["nodes"] = changed
    if gone := [peer_id for peer_id in old if peer_id not in new]:
        told["gone"] = gone
    return told
