"""Finished generations to count and to write down."""

from dataclasses import replace
from typing import Any, Final

from cosine_p2p.request.origins import Origin
from cosine_p2p.request.results import DrafterReport, Generation

CODE: Final = DrafterReport("peer-a", "code", drafted=30, accepted=12, rtt_ms=1.0)
MATH: Final = DrafterReport("peer-b", "math", drafted=10, accepted=4, rtt_ms=2.0)
DONE: Final = Generation(
    text="some text",
    token_ids=tuple(range(21)),
    prompt_tokens=5,
    tokens=21,
    finish_reason="eos",
    seconds=2.5,
    time_to_first_token_s=0.5,
    strategy="cosine",
    seed=7,
    rounds=5,
    drafted=40,
    offered=20,
    accepted=16,
    near_ties=0,
    bytes_sent=1,
    bytes_received=1,
    drafters=(CODE, MATH),
    verifiers=(),
    why=(),
    origins=(
        Origin(source="peer-a", domain="code", tokens=12),
        Origin(source="peer-b", domain="math", tokens=4),
        Origin(source="target", tokens=5),
    ),
)


def generation(**changes: Any) -> Generation:
    return replace(DONE, **changes)
