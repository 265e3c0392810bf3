"""The results of a simulated run: requests, nodes, and violations of invariants."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from cosine_protocol.records import Role

DIGEST_BYTES: Final = 16
"""Long enough against equal digests of different runs."""


class EventLog:
    """A digest of all events of a run: their time, kind, request and tokens, without wall time."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def note(self, at_s: float, kind: str, number: int = -1, tokens: Sequence[int] = ()) -> None:
        self._hash.update(f"{at_s!r} {kind} {number} {' '.join(map(str, tokens))}\n".encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class RequestEnding(StrEnum):
    """The ways in which a request can end."""

    FINISHED = "finished"
    FAILED = "failed"
    """It ended with a typed error."""
    LEFT = "left"
    """It ended with a typed error, after its client had vanished."""
    HUNG = "hung"
    """It did not end by its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request. `is_match`: its tokens are the target's own stream, or a beginning of it if it did not finish.

    `seconds` is the whole time, `first_s` that to the first token, 0 if there was none.
    """

    number: int
    client: int
    domain: str
    strategy: str
    ending: RequestEnding
    error: str
    is_match: bool
    began_s: float
    seconds: float
    first_s: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    near_ties: int
    verifiers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The use of one node: passes, the rows and tokens fed in them, their seconds, bytes over its streams."""

    peer_id: str
    role: Role
    domain: str
    passes: int
    rows: int
    tokens_fed: int
    busy_s: float
    carried_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """All results of a run.

    `virtual_seconds` is until the last request ended. `leaked` names what was still held after everything had
    ended, `errors` holds the messages logged as errors. `fault_counts` are the planned faults by kind;
    `must_finish` is True if they left a verifier able to finish every request.
    """

    scenario: str
    strategy: str
    seed: int
    digest: str
    virtual_seconds: float
    wall_seconds: float
    results: tuple[RequestResult, ...]
    nodes: tuple[NodeUse, ...]
    leaked: tuple[str, ...]
    errors: tuple[str, ...]
    fault_counts: dict[str, int]
    must_finish: bool
    speedup_vs_plain: float | None = None

    @property
    def finished(self) -> tuple[RequestResult, ...]:
        return tuple(result for result in self.results if result.ending is RequestEnding.FINISHED)

    @property
    def tokens(self) -> int:
        return sum(result.tokens for result in self.results)

    @property
    def tokens_per_s(self) -> float:
        """Output of all clients together over the time from the first request to the end of the last."""
        began_s = min((result.began_s for result in self.results), default=0.0)
        return self.tokens / (self.virtual_seconds - began_s) if self.virtual_seconds > began_s else 0.0

    @property
    def mismatches(self) -> int:
        return sum(not result.is_match for result in self.results)

    @property
    def bytes_per_token(self) -> float:
        return sum(node.carried_bytes for node in self.nodes) / self.tokens if self.tokens else 0.0

    @property
    def seconds_per_token(self) -> float:
        """Machine seconds of all nodes for each token of output."""
        return sum(node.busy_s for node in self.nodes) / self.tokens if self.tokens else 0.0

    def count(self, ending: RequestEnding) -> int:
        return sum(result.ending is ending for result in self.results)

    def latency_ms(self, percent: float) -> float | None:
        """A percentile of the latency of finished requests, linear between two of them; None if none finished."""
        seconds = [result.seconds for result in self.finished]
        return 1e3 * float(np.percentile(seconds, percent)) if seconds else None

    def violations(self) -> list[str]:
        """Return sentences about violated invariants; none for a good run."""
        wrong = [f"request {r.number} is not the target's stream" for r in self.results if not r.is_match]
        wrong += [f"request {r.number} hung" for r in self.results if r.ending is RequestEnding.HUNG]
        if self.must_finish:
            wrong += [f"request {r.number}: {r.error}" for r in self.results if r.ending is RequestEnding.FAILED]
        return [*wrong, *self.leaked, *self.errors]

    def as_json(self) -> dict[str, Any]:
        """The JSON object of `cosine-node simulate`."""
        by_role = {role: [node for node in self.nodes if node.role is role] for role in Role}
        return {
            "scenario": self.scenario,
            "strategy": self.strategy,
            "seed": self.seed,
            "digest": self.digest,
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": round(self.wall_seconds, 3),
            "requests": len(self.results),
            "finished": len(self.finished),
            "failed": self.count(RequestEnding.FAILED),
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "latency_ms": {f"p{percent}": self.latency_ms(percent) for percent in (50, 95, 99)},
            "mismatches": self.mismatches,
            "hung": self.count(RequestEnding.HUNG),
            "leaked": len(self.leaked),
            "speedup_vs_plain": self.speedup_vs_plain,
            "bytes_per_token": self.bytes_per_token,
            "busy_seconds_per_token": self.seconds_per_token,
            "passes": {role.value: sum(node.passes for node in nodes) for role, nodes in by_role.items()},
            "tokens_fed": {role.value: sum(node.tokens_fed for node in nodes) for role, nodes in by_role.items()},
            "faults": self.fault_counts,
            "violations": self.violations(),
        }


def speedup(report: SimulationReport, plain: SimulationReport) -> float | None:
    """The factor by which requests that finished in both runs were faster; None if there are none."""
    seconds = {result.number: result.seconds for result in plain.finished}
    both = [(seconds[r.number], r.seconds) for r in report.finished if r.number in seconds]
    ours_s = sum(ours for _, ours in both)
    return sum(theirs for theirs, _ in both) / ours_s if ours_s else None
