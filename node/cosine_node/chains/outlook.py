"""The expected speed over a swarm's stages, and estimates of its machines, by their records. Pure.

A record has the layers, pass time, load, coordinate and cache size of a stage. These give the chain that a head
would take and its pass time, and an estimated `Machine`: its memory is what it holds, which it reads once in a
pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from cosine_node.chains.planning import Machine, ModelNeeds, drafted_tokens
from cosine_node.chains.search import (
    USUAL_RTT_S,
    NoChain,
    StagePlace,
    chain_ways_s,
    find_chain,
    loaded_pass_s,
)
from cosine_p2p.directory.coverage import Kind, kinds_of
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_protocol.records import NodeRecord, Role

ACCEPTANCE: Final = 0.6
"""Assumed acceptance rate of drafts: in the middle of what drafters reach (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The chain for one kind of model, or its `problem`; `pass_s` is a pass's time, `way_s` its network part."""

    kind: Kind
    stages: tuple[StagePlace, ...] = ()
    way_s: float = 0.0
    pass_s: float = 0.0
    problem: str = ""

    def tokens_per_s(self, *, acceptance_rate: float = 0.0) -> float | None:
        """The speed of one text at an acceptance rate; None without a chain."""
        return drafted_tokens(acceptance_rate) / self.pass_s if self.stages else None


def outlooks(records: Iterable[NodeRecord]) -> list[Outlook]:
    """The outlook of each kind of model; the kind with most stages first."""
    known = list(records)
    return [_outlook(known, kind) for kind, _ in kinds_of(known)]


def _outlook(records: Sequence[NodeRecord], kind: Kind) -> Outlook:
    digest, numerics, layers = kind
    coordinates = {record.peer_id: record.coordinate for record in records}
    places = [
        StagePlace.announced(record)
        for record in records
        if record.stage is not None and (record.target_digest.hex(), record.numerics) == (digest, numerics)
    ]
    heads = [
        record.peer_id
        for record in records
        if record.role == Role.VERIFIER and record.stages and record.target_digest.hex() == digest
    ]
    head = min(heads, default="")

    def rtt_s(one: str, other: str) -> float | None:
        return estimated_rtt_s(coordinates.get(one), coordinates.get(other))

    try:
        found = find_chain(places, layers=layers, head=head, rtt_s=rtt_s)
    except NoChain as error:
        return Outlook(kind=kind, problem=str(error))
    ways_s = chain_ways_s(found.peer_ids, head=head, rtt_s=rtt_s)
    return Outlook(kind=kind, stages=found.stages, way_s=sum(ways_s), pass_s=found.seconds)


def sentence_of(outlook: Outlook, *, acceptance_rate: float = ACCEPTANCE) -> str:
    """The outlook or its problem as a sentence."""
    plain, drafted = outlook.tokens_per_s(), outlook.tokens_per_s(acceptance_rate=acceptance_rate)
    if plain is None or drafted is None:
        return outlook.problem
    return (
        f"A pass over {len(outlook.stages)} stage{'' if len(outlook.stages) == 1 else 's'} takes "
        f"{1e3 * outlook.pass_s:.0f} ms, {1e3 * outlook.way_s:.0f} of them on its way: {plain:.1f} tokens/s, "
        f"{drafted:.1f} where {acceptance_rate:.0%} of the drafts come true."
    )


def outlook_as_object(outlook: Outlook) -> dict[str, Any]:
    """The outlook as a JSON object."""
    target_digest, numerics, _ = outlook.kind
    return {
        "target_digest": target_digest,
        "numerics": numerics,
        "stages": [
            {"peer_id": one.peer_id, "layers": str(one.layers), "pass_s": one.pass_s} for one in outlook.stages
        ],
        "way_s": outlook.way_s,
        "pass_s": outlook.pass_s,
        "tokens_per_s": outlook.tokens_per_s(),
        "acceptance": ACCEPTANCE,
        "drafted_tokens_per_s": outlook.tokens_per_s(acceptance_rate=ACCEPTANCE),
        "problem": outlook.problem,
    }


def announced_machines(
    records: Iterable[NodeRecord], needs: ModelNeeds, *, numerics: str, up_bits_per_s: float
) -> list[tuple[Machine, NodeRecord]]:
    """The estimated machines of a model's stages with their records, by peer id, all with the given uplink."""
    stages = [
        record
        for record in sorted(records, key=lambda each: each.peer_id)
        if record.stage is not None and record.stage.layers == needs.sizes.layers and record.numerics == numerics
    ]
    found = []
    for record in stages:
        assert record.stage is not None
        held = record.stage.held
        others = [
            rtt_s
            for other in stages
            if other is not record and (rtt_s := estimated_rtt_s(record.coordinate, other.coordinate)) is not None
        ]
        pass_s = loaded_pass_s(record.pass_us / 1e6, busy=0.0)
        machine = Machine(
            name=record.peer_id,
            memory_bytes=replace(needs, pool_tokens=record.stage.pool_tokens).bytes_of(held),
            read_bytes_per_s=needs.read_bytes(len(held), is_last=held.is_last) / pass_s,
            up_bits_per_s=up_bits_per_s,
            rtt_s=median(others) if others else USUAL_RTT_S,
        )
        found.append((machine, record))
    return found


def told_outlooks(records: Iterable[NodeRecord]) -> list[tuple[dict[str, Any], str]]:
    """The outlooks as JSON objects, each with its sentence, "" without a chain."""
    return [(outlook_as_object(each), sentence_of(each) if each.stages else "") for each in outlooks(records)]
