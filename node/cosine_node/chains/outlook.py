"""How fast texts come over the stages that a swarm has, and what its machines give, by what they announce. Pure.

Theory of operation: a record says which layers a stage holds, how long a pass of one token takes there, how busy
it is, where it is, and how many tokens its cache has room for. The first four give the chain that a head would take
and the time of a pass over it. With the sizes of the model's parts they give a `Machine` each, as far as it shows:
it has the memory of what it holds and no more, and reads that in the time of its pass.
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
    StageSight,
    chain_ways_s,
    find_chain,
    loaded_pass_s,
)
from cosine_node.stages.coverage import Kind, kinds_of
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_protocol.records import NodeRecord, Role

ACCEPTANCE: Final = 0.6
"""How many drafted tokens come true, where nothing else is known: in the middle of what drafters reach
(docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The chain over the stages of one kind of model; no stages and a `problem`, one sentence, where there is none.

    `way_s` is the time that a pass is on its way, `pass_s` all that it takes.
    """

    kind: Kind
    stages: tuple[StageSight, ...] = ()
    way_s: float = 0.0
    pass_s: float = 0.0
    problem: str = ""

    def tokens_per_s(self, *, acceptance_rate: float = 0.0) -> float | None:
        """The speed of one text where each drafted token comes true with this chance; None without a chain."""
        return drafted_tokens(acceptance_rate) / self.pass_s if self.stages else None


def outlooks(records: Iterable[NodeRecord]) -> list[Outlook]:
    """What to expect of the stages of each kind of model; of the kind with most stages first."""
    known = list(records)
    return [_outlook(known, kind) for kind, _ in kinds_of(known)]


def _outlook(records: Sequence[NodeRecord], kind: Kind) -> Outlook:
    digest, numerics, layers = kind
    places = {record.peer_id: record.coordinate for record in records}
    sights = [
        StageSight(
            StagePlace(record.peer_id, record.stage.held),
            loaded_pass_s(record.pass_us / 1e6, busy=record.stage.busy_permille / 1e3),
        )
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
        return estimated_rtt_s(places.get(one), places.get(other))

    try:
        found = find_chain(sights, layers=layers, head=head, rtt_s=rtt_s)
    except NoChain as error:
        return Outlook(kind=kind, problem=str(error))
    ways_s = chain_ways_s(found.peer_ids, head=head, rtt_s=rtt_s)
    return Outlook(kind=kind, stages=found.stages, way_s=sum(ways_s), pass_s=found.seconds)


def sentence_of(outlook: Outlook, *, acceptance_rate: float = ACCEPTANCE) -> str:
    """What to expect of it, for people; what is lacking where it is nothing."""
    plain, drafted = outlook.tokens_per_s(), outlook.tokens_per_s(acceptance_rate=acceptance_rate)
    if plain is None or drafted is None:
        return outlook.problem
    return (
        f"A pass over {len(outlook.stages)} stage{'' if len(outlook.stages) == 1 else 's'} takes "
        f"{1e3 * outlook.pass_s:.0f} ms, {1e3 * outlook.way_s:.0f} of them on its way: {plain:.1f} tokens/s, "
        f"{drafted:.1f} where {acceptance_rate:.0%} of the drafts come true."
    )


def outlook_as_object(outlook: Outlook) -> dict[str, Any]:
    """All of it for machines."""
    target_digest, numerics, _ = outlook.kind
    return {
        "target_digest": target_digest,
        "numerics": numerics,
        "stages": [
            {"peer_id": one.place.peer_id, "layers": str(one.place.layers), "pass_s": one.pass_s}
            for one in outlook.stages
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
    """The machines behind the stages of a model, by peer id, each with its record.

    Nobody announces an uplink: all have the one that is given.
    """
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
