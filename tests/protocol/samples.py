"""Valid requests, records and identities."""

from dataclasses import replace
from typing import Any, Final

from cosine_protocol.identity import Identity
from cosine_protocol.records import SCHEMA, GenerationDefaults, NetworkCoordinate, NodeRecord, Role, StageOffer
from cosine_protocol.request import Request, Sampling
from cosine_protocol.verify import Likelihood, TokenLikelihood

# The Ed25519 key of the libp2p peer id specification.
SPEC_SEED: Final = bytes.fromhex("7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d")
OWNER: Final = Identity.from_seed(SPEC_SEED)
OTHER: Final = Identity.from_seed(bytes(range(32)))
SWARM_SEED: Final = bytes(range(32, 64))
SWARM: Final = Identity.from_seed(SWARM_SEED)
NOW_S: Final = 1_700_000_000.0
LIFETIME_S: Final = 300.0
GENERATION_DEFAULTS: Final = GenerationDefaults(
    do_sample=True,
    temperature=0.7,
    top_k=20,
    top_p=0.8,
    repetition_penalty=1.1,
    max_new_tokens=2048,
    not_honoured=("no_repeat_ngram_size",),
)
COORDINATE: Final = NetworkCoordinate(-12_500, 40_000, 0, 2_300, 85)
"""A peer some 40 ms from the origin, with an error of 8.5 %."""
STAGE_OFFER: Final = StageOffer(
    first_layer=8,
    end_layer=16,
    layers=24,
    wide_tokens=64,
    wide_pass_us=31_000,
    busy_permille=250,
    pool_tokens=32_768,
)


LIKELIHOODS: Final = (
    Likelihood(105_361, (TokenLikelihood(13, 105_361), TokenLikelihood(8, 2_302_586))),
    Likelihood(3_912_023, (TokenLikelihood(8, 223_144), TokenLikelihood(34, 1_771_957))),
)
"""Likelihoods of a likely and of an unlikely token."""


def request_of(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "target_digest": bytes(range(32)),
        "tokenizer_digest": bytes(range(32, 64)),
        "numerics": "float32",
        "prompt": (1, 15043, 29892, 3186),
        "sampling": Sampling(
            temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, seed=0xC051_4E00_0000_0001
        ),
        "eos": (2, 32000),
        "client": OTHER.peer_id,
        "nonce": bytes(range(16)),
        "max_new_tokens": 128,
    }
    return Request(**(fields | changes))


def record_of(**changes: Any) -> NodeRecord:
    """A valid record of `OWNER`, issued at `NOW_S`, with a matching target digest."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "peer_id": OWNER.peer_id,
        "role": Role.VERIFIER,
        "target": "someone/model",
        "content_digest": bytes(range(32)),
        "tokenizer_digest": bytes(range(32, 64)),
        "numerics": "float32",
        "model": "someone/model",
        "expertise": ("code", "prose"),
        "capacity_requests": 16,
        "load_requests": 3,
        "pass_us": 21_500,
        "context_tokens": 4096,
        "eos": (2, 32000),
        "addresses": ("/ip4/192.0.2.1/tcp/4001",),
        "software": "cosine-p2p/0.1.0",
        "emulated": "",
        "sequence": 7,
        "issued_at_s": NOW_S,
        "lifetime_s": LIFETIME_S,
    }
    record = NodeRecord(**({"target_digest": bytes(32)} | fields | changes))
    return record if "target_digest" in changes else replace(record, target_digest=record.facts.digest())
