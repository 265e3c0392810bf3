"""Whose each token of a reply is, who wrote it, and the proof of it: for clients that ask for `provenance`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from cosine_p2p.request.origins import TokenOrigin
from cosine_p2p.request.results import Generation

Json = dict[str, Any]
PROOF_FORMAT: Final = "cosine-proof/1"


def as_objects(origins: Iterable[TokenOrigin]) -> list[Json]:
    """One object for each token, in the order of the text."""
    return [asdict(one) for one in origins]


def account_of(done: Generation) -> Json:
    """Who wrote a text and how fast, and what its verifiers, its auditors and its client have signed."""
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
    """What was signed about a text, for anybody to check: `evidence` as of an audit."""
    evidence = done.audit.evidence if done.audit is not None else ()
    return {"format": PROOF_FORMAT, "evidence": [asdict(piece) for piece in evidence]}
