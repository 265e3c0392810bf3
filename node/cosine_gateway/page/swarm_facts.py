"""The state of a swarm for the page as JSON: its nodes, the layers of its stages, and gaps. Pure.

Strings of other peers are included unchanged, and must be displayed as text.
"""

from collections.abc import Collection, Mapping, Sequence

from cosine_gateway.body import Json
from cosine_gateway.page.machine import PageMachine
from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.survey import NodeSight, Survey
from cosine_p2p.transport.reach import is_relayed
from cosine_protocol.numerics import repeats
from cosine_protocol.records import Role


def swarm_facts(
    survey: Survey,
    machine: PageMachine | None,
    *,
    convicted: Collection[str] = (),
    checks: Mapping[str, int] | None = None,
) -> Json:
    """Return the state of a swarm.

    `convicted` are the peer ids of verifiers proven wrong, `checks` the numbers of texts of a verifier that this
    gateway's client has checked and found correct. Without a `machine` nothing is said of stages and of joining.
    """
    reached = [sight.record for sight in survey.nodes if not sight.reason]
    return {
        "target": survey.target,
        "problem": survey.problem,
        "nodes": [_node_facts(sight, machine, convicted, checks or {}) for sight in survey.nodes],
        **(machine.stages(reached) if machine else {"coverage": [], "outlook": []}),
    }


def _node_facts(
    sight: NodeSight, machine: PageMachine | None, convicted: Collection[str], checks: Mapping[str, int]
) -> Json:
    """Return one node's record, its answer, and what this gateway knows about it."""
    record, stage, at = sight.record, sight.record.stage, sight.record.coordinate
    return {
        "peer_id": record.peer_id,
        "role": record.role,
        "target": record.target,
        "target_digest": record.target_digest.hex(),
        "model": record.model,
        "numerics": record.numerics,
        # Other drafters need not use the same numerics.
        "join_options": []
        if machine is None or record.role == Role.DRAFTER
        else list(machine.join_options(record.numerics)),
        "repeats": repeats(record.numerics),
        "expertise": list(record.expertise),
        "software": record.software,
        "emulated": record.emulated,
        "capacity": record.capacity_requests,
        "load": record.load_requests if sight.requests is None else sight.requests,
        "pass_ms": record.pass_us / 1e3,
        "context_tokens": record.context_tokens,
        "addresses": list(record.addresses),
        "way": way_to(record.addresses),
        "coordinate": None
        if at is None
        else {
            "x_ms": at.x_us / 1e3,
            "y_ms": at.y_us / 1e3,
            "z_ms": at.z_us / 1e3,
            "height_ms": at.height_us / 1e3,
            "error": at.error_permille / 1e3,
        },
        "layers": None if stage is None else [stage.first_layer, stage.end_layer, stage.layers],
        "busy": None if stage is None else stage.busy_permille / 1e3,
        # Rounded, as each change is sent to every page.
        "rtt_ms": None if sight.rtt_s is None else round(1e3 * sight.rtt_s, 1),
        "passes": sight.passes,
        "accepted": sight.accepted,
        "text_tokens": sight.text_tokens,
        "drafts": drafts_sentence(record.four_tokens_permille),
        "reason": sight.reason,
        "checks": checks.get(record.peer_id, 0) if record.role == Role.VERIFIER else None,
        "is_convicted": record.peer_id in convicted,
    }


def way_to(addresses: Sequence[str]) -> str:
    """Return `direct`, `relayed` if all addresses are relay addresses, or "" without any."""
    return "" if not addresses else "relayed" if is_relayed(addresses) else "direct"


def changes(before: Json, after: Json) -> Json:
    """Return the difference of two states: the changed fields of each node, all fields of new ones.

    `gone` are the peer ids of nodes that left. Empty if nothing changed.
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
