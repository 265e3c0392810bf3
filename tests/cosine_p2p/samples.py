"""Records and requests for tests."""

from typing import Any

from cosine_protocol.identity import Identity
from cosine_protocol.records import SCHEMA, NodeRecord, StageOffer
from cosine_protocol.request import Request, Sampling

NETWORK = "test"
TARGET = "someone/model"


def identity_of(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def record_of(identity: Identity, *, now_s: float, **changes: Any) -> NodeRecord:
    """A valid drafter record, issued now for five minutes."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "peer_id": identity.peer_id,
        "role": "drafter",
        "target": TARGET,
        "target_digest": b"\x01" * 32,
        "content_digest": b"\x03" * 32,
        "tokenizer_digest": b"\x02" * 32,
        "numerics": "float32",
        "model": "tiny",
        "expertise": ("code",),
        "capacity_requests": 4,
        "load_requests": 0,
        "pass_us": 900,
        "context_tokens": 1024,
        "eos": (2,),
        "addresses": ("/ip4/127.0.0.1/tcp/1",),
        "software": "test",
        "emulated": "",
        "sequence": int(now_s * 1000),
        "issued_at_s": now_s,
        "lifetime_s": 300.0,
    }
    return NodeRecord(**(fields | changes))


def stage_offer(first: int, end: int, *, layers: int, **changes: Any) -> StageOffer:
    """Return the offer of an idle stage with these layers."""
    fields: dict[str, Any] = {"wide_tokens": 16, "wide_pass_us": 100, "busy_permille": 0, "pool_tokens": 64}
    return StageOffer(first_layer=first, end_layer=end, layers=layers, **fields | changes)


def request_of(client: str, *, max_new_tokens: int) -> Request:
    """A greedy request with a prompt of one token; 9 ends its text."""
    return Request(
        target_digest=bytes(32),
        tokenizer_digest=bytes(32),
        numerics="float32",
        prompt=(1,),
        sampling=Sampling(),
        eos=(9,),
        client=client,
        nonce=bytes(16),
        max_new_tokens=max_new_tokens,
    )
