"""The records of simulated verifiers and drafters, and the facts of their one target."""

from dataclasses import replace
from typing import Final

from cosine_engine.base import Engine
from cosine_engine.curve import CostCurve
from cosine_protocol.records import SCHEMA, GenerationDefaults, NetworkCoordinate, NodeRecord, Role, TargetFacts

# The records of simulated nodes name this target, and contents and a tokenizer with this digest.
TARGET: Final = "zoo:target"
DIGEST: Final = bytes(32)
LIFETIME_S: Final = 600.0
"""The lifetime of a record. Twice that of a real node, so that few records must be renewed."""


def facts_of(
    eos: tuple[int, ...],
    generation_defaults: GenerationDefaults | None = None,
    *,
    tokenizer_digest: bytes = DIGEST,
) -> TargetFacts:
    """The facts of a simulated target."""
    return TargetFacts(
        content_digest=DIGEST, tokenizer_digest=tokenizer_digest, eos=eos, generation_defaults=generation_defaults
    )


def record_of(
    peer_id: str,
    role: Role,
    facts: TargetFacts,
    *,
    engine: Engine,
    curve: CostCurve,
    domain: str,
    emulated: str,
    load_requests: int,
    sequence: int,
    now_s: float,
    coordinate: NetworkCoordinate | None,
    stages: tuple[str, ...] = (),
    addresses: tuple[str, ...] = (),
) -> NodeRecord:
    """The record of a node as it is now."""
    return replace(
        _RECORD,
        peer_id=peer_id,
        role=role,
        numerics=engine.numerics,
        expertise=(domain,),
        load_requests=load_requests,
        pass_us=round(1e6 * curve.seconds(1)),
        context_tokens=engine.context_tokens,
        target_digest=facts.digest(),
        tokenizer_digest=facts.tokenizer_digest,
        eos=facts.eos,
        emulated=emulated,
        generation_defaults=facts.generation_defaults if role is Role.VERIFIER else None,
        sequence=sequence,
        issued_at_s=now_s,
        coordinate=coordinate,
        stages=stages or None,
        addresses=addresses,
    )


_RECORD: Final = NodeRecord(
    schema=SCHEMA,
    peer_id="",
    role=Role.VERIFIER,
    target=TARGET,
    target_digest=DIGEST,
    content_digest=DIGEST,
    tokenizer_digest=DIGEST,
    numerics="",
    model="simulated",
    expertise=(),
    capacity_requests=16,
    load_requests=0,
    pass_us=1,
    context_tokens=1,
    eos=(),
    addresses=(),
    software="simulation",
    emulated="",
    sequence=0,
    issued_at_s=0.0,
    lifetime_s=LIFETIME_S,
)
