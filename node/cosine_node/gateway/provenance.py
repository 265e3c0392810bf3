"""The account of a generation for clients that ask for `provenance`: who wrote it, how fast, and the proof."""

from dataclasses import asdict
from typing import Any, Final

from cosine_p2p.request.results import Generation

Json = dict[str, Any]
PROOF_FORMAT: Final = "cosine-proof/1"


def account_of(done: Generation) -> Json:
    """Return the speed of a generation, its authors, and the statements that they signed."""
    return {
        "seconds": round(done.seconds, 4),
        "time_to_first_token_s": round(done.time_to_first_token_s, 4),
        "tokens": done.tokens,
        "rounds": done.rounds,
        "accepted": done.accepted,
        "offered": done.offered,
        "plain_pass_s": done.plain_pass_s,
        "coordinator": done.coordinator,
        "verifiers": [asdict(each) for each in done.verifiers],
        "drafters": [asdict(each) for each in done.drafters],
        "why": list(done.why),
        "proof": proof_of(done),
    }


def proof_of(done: Generation) -> Json:
    """Return the signed statements about a text, which anybody can check; `evidence` as in an audit."""
    evidence = done.audit.evidence if done.audit is not None else ()
    return {"format": PROOF_FORMAT, "evidence": [asdict(piece) for piece in evidence]}
