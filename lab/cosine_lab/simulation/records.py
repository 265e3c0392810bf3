"""The record that those of simulated verifiers and drafters begin as, and the facts of their one target."""

from typing import Final

from cosine_protocol.records import SCHEMA, GenerationDefaults, NodeRecord, Role, TargetFacts

# The records of simulated nodes name this target, and contents and a tokenizer with this digest.
TARGET: Final = "zoo:target"
DIGEST: Final = bytes(32)
LIFETIME_S: Final = 600.0
"""The lifetime of a record. Twice that of a real node, so that few records must be renewed."""


def facts_of(eos: tuple[int, ...] = (), generation_defaults: GenerationDefaults | None = None) -> TargetFacts:
    """The facts of a simulated target."""
    return TargetFacts(
        content_digest=DIGEST, tokenizer_digest=DIGEST, eos=eos, generation_defaults=generation_defaults
    )


RECORD: Final = NodeRecord(
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
