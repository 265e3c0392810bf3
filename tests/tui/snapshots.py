"""Snapshots made by hand: no clock, no network, no chance."""

from dataclasses import replace
from typing import Any

from cosine_p2p.survey import NodeSight, Survey
from cosine_protocol.identity import Identity
from cosine_protocol.records import NodeRecord, Role
from cosine_tui.feed import StillFeed
from cosine_tui.prompt_line import Options
from cosine_tui.snapshot import (
    ConnectionState,
    DrafterView,
    Event,
    EventKind,
    NodeView,
    Reachability,
    RequestState,
    RequestView,
    Snapshot,
    SwarmConnection,
    TextRun,
)

TARGET = "someone/model"
LOST_REASON = "no answer within 4 s"


def peer_id_of(number: int) -> str:
    return Identity.from_seed(number.to_bytes(32, "big")).peer_id


VERIFIER, SPARE, CODE, MATH = map(peer_id_of, (1, 2, 3, 4))


def node_of(peer_id: str, **changes: Any) -> NodeView:
    fields: dict[str, Any] = {
        "peer_id": peer_id,
        "role": Role.VERIFIER,
        "domains": ("target",),
        "model": "someone/model",
        "numerics": "bfloat16",
        "emulated": "",
        "software": "test",
        "pass_ms": 62.0,
        "load": 2,
        "capacity": 16,
        "context_tokens": 4096,
        "reachability": Reachability.UP,
        "reason": "",
        "since_s": 0.0,
        "rtt_ms": 41.2,
        "passes_per_s": 7.5,
    }
    return NodeView(**(fields | changes))


def drafter_of(peer_id: str, domain: str, author: int, **changes: Any) -> NodeView:
    return node_of(
        peer_id, role=Role.DRAFTER, domains=(domain,), model=f"tiny-{domain}", author=author, pass_ms=5.9, **changes
    )


def request_of(number: int = 7, **changes: Any) -> RequestView:
    fields: dict[str, Any] = {
        "number": number,
        "prompt": "Add two numbers.",
        "label": "code",
        "is_own": True,
        "strategy": "cosine",
        "seed": 3,
        "state": RequestState.WRITING,
        "error": "",
        "seconds": 2.5,
        "first_s": 0.31,
        "text": (TextRun("def add", 1), TextRun("(a, b", 0), TextRun("):\n    return a + b", 2)),
        "tokens": 12,
        "own_tokens": 4,
        "rounds": 6,
        "passes": (0, 2, 3, 0, 1, 2),
        "tokens_per_s": 17.3,
        "own_per_s": 5.8,
        "finish_reason": "",
        "verifiers": (VERIFIER,),
        "drafters": (
            DrafterView(
                peer_id=CODE,
                domain="code",
                author=1,
                rtt_ms=40.0,
                drafted=120,
                accepted=5,
                drafted_per_s=61.0,
                accepted_per_s=7.1,
            ),
            DrafterView(
                peer_id=MATH,
                domain="math",
                author=2,
                rtt_ms=44.0,
                drafted=80,
                accepted=3,
                drafted_per_s=40.0,
                accepted_per_s=4.4,
            ),
        ),
        "why": ("code: 15 tokens deep, 8 nodes a pass", "math: released: weight 0.008"),
    }
    return RequestView(**(fields | changes))


NODES = (
    node_of(VERIFIER),
    node_of(
        SPARE, reachability=Reachability.LOST, reason=LOST_REASON, since_s=50.0, rtt_ms=None, passes_per_s=None
    ),
    drafter_of(CODE, "code", 1, text_share=0.42, accepted_tokens=5, emulated="60/6@10"),
    drafter_of(MATH, "math", 2, load=16),
)
EVENTS = (
    Event(0.4, EventKind.JOINED, "found 2 verifiers and 2 drafters"),
    Event(50.0, EventKind.UNREACHABLE, f"verifier {SPARE[-6:]}: {LOST_REASON}"),
    Event(50.2, EventKind.FAILOVER, f"request 6: {SPARE[-6:]} was lost: the stream ended"),
)
SNAPSHOT = Snapshot(
    at_s=62.0,
    title="network test",
    target=TARGET,
    connection=SwarmConnection(state=ConnectionState.LIVE, since_s=0.4),
    nodes=NODES,
    requests=(
        request_of(6, is_own=False, state=RequestState.FINISHED, finish_reason="eos", label="math"),
        request_of(7),
    ),
    events=EVENTS,
)
LOST = replace(
    SNAPSHOT,
    connection=SwarmConnection(
        state=ConnectionState.LOST, since_s=55.0, reason="the DHT did not answer", retry_at_s=66.0
    ),
    events=(*EVENTS, Event(55.0, EventKind.SWARM_LOST, "the DHT did not answer")),
)


class RecordingFeed(StillFeed):
    """A feed that keeps the commands it is given, and can show another snapshot or fail."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.asked: list[tuple[str, Options]] = []
        self.cancelled: list[int] = []
        self.is_closed = False
        self.show = self._latest.put
        self._error: BaseException | None = None

    def error(self) -> BaseException | None:
        return self._error

    def fail(self, error: BaseException) -> None:
        self._error = error

    def ask(self, prompt: str, options: Options) -> None:
        self.asked.append((prompt, options))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def close(self) -> None:
        self.is_closed = True


def record_of(number: int, role: Role = Role.DRAFTER, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "schema": 1,
        "peer_id": peer_id_of(number),
        "role": role,
        "target": TARGET,
        "target_digest": bytes(32),
        "tokenizer_digest": bytes(32),
        "numerics": "float32",
        "model": "tiny",
        "expertise": ("code",),
        "capacity_requests": 4,
        "load_requests": 1,
        "pass_us": 900,
        "context_tokens": 1024,
        "eos": (2,),
        "addresses": (),
        "software": "test",
        "emulated": "",
        "sequence": 1,
        "issued_at_s": 0.0,
        "lifetime_s": 300.0,
    }
    return NodeRecord(**(fields | changes))


def sight_of(number: int, role: Role = Role.DRAFTER, *, reason: str = "", passes: int = 10) -> NodeSight:
    is_up = not reason
    return NodeSight(
        record=record_of(number, role),
        rtt_s=0.02 if is_up else None,
        requests=2 if is_up else None,
        passes=passes if is_up else None,
        uptime_s=5.0 if is_up else None,
        reason=reason,
    )


def survey_of(*sights: NodeSight, problem: str = "") -> Survey:
    return Survey(target=TARGET, nodes=sights, problem=problem)
