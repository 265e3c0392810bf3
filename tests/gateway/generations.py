"""Finished generations to count and to write down."""

from dataclasses import replace
from typing import Any, Final

from cosine_p2p.request.origins import Origin
from cosine_p2p.request.results import DrafterReport, Generation, SwarmReport, Usage

CODE: Final = DrafterReport("peer-a", "code", drafted=30, accepted=12, rtt_ms=1.0)
MATH: Final = DrafterReport("peer-b", "math", drafted=10, accepted=4, rtt_ms=2.0)
DONE: Final = Generation(
    text="some text",
    token_ids=tuple(range(21)),
    finish_reason="stop",
    seed=7,
    usage=Usage(prompt_tokens=5, completion_tokens=21),
    swarm=SwarmReport(
        strategy="cosine",
        rounds=5,
        drafted=40,
        offered=20,
        accepted=16,
        drafters=(CODE, MATH),
        origins=(
            Origin(source="peer-a", domain="code", tokens=12),
            Origin(source="peer-b", domain="math", tokens=4),
            Origin(source="target", tokens=5),
        ),
    ),
    seconds=2.5,
    time_to_first_token_s=0.5,
)


def generation(**changes: Any) -> Generation:
    """The generation with other values, also of its `usage` and `swarm`."""
    for part in ("usage", "swarm"):
        own = {name: changes.pop(name) for name in list(changes) if hasattr(getattr(DONE, part), name)}
        changes[part] = replace(getattr(DONE, part), **own)
    return replace(DONE, **changes)
