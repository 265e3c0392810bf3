"""Snapshots made by hand, without a clock, a network or chance."""

from dataclasses import replace
from typing import Any

from cosine_p2p.request.origins import TARGET_SOURCE
from cosine_p2p.request.results import DrafterReport, Generation, Progress, VerifierReport
from cosine_p2p.survey import NodeSight, Survey
from cosine_p2p.trust.denied_peers import Ban
from cosine_protocol.records import NodeRecord, Role
from cosine_tui.state.feed import Feed
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import (
    ConnectionState,
    DrafterView,
    Event,
    EventKind,
    Moment,
    NodeView,
    OriginView,
    RequestState,
    RequestView,
    Snapshot,
    Speeds,
    SwarmConnection,
    Tally,
    TextRun,
)
from tests.cosine_p2p import samples
from tests.cosine_p2p.samples import TARGET, identity_of
from tests.gateway.generations import generation

LOST_REASON = "no answer within 4 s"


def peer_id_of(number: int) -> str:
    return identity_of(number).peer_id


VERIFIER, SPARE, CODE, MATH = map(peer_id_of, (1, 2, 3, 4))
VERIFIER_RECORD: dict[str, Any] = {
    "expertise": ("target",),
    "model": "someone/model",
    "numerics": "bfloat16",
    "pass_us": 62_000,
    "capacity_requests": 16,
    "context_tokens": 4096,
}


def record_of(number: int, role: Role = Role.DRAFTER, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "role": role,
        "target": TARGET,
        "target_digest": bytes(32),
        "tokenizer_digest": bytes(32),
        "load_requests": 1,
        "addresses": (),
        "sequence": 1,
    }
    return samples.record_of(identity_of(number), now_s=0.0, **(fields | changes))


def node_of(peer_id: str, *, record: NodeRecord | None = None, **changes: Any) -> NodeView:
    fields: dict[str, Any] = {
        "record": record or record_of(0, Role.VERIFIER, peer_id=peer_id, **VERIFIER_RECORD),
        "requests": 2,
        "since_s": 0.0,
        "rtt_s": 0.0412,
        "passes_per_s": 7.5,
    }
    return NodeView(**(fields | changes))


def drafter_of(peer_id: str, domain: str, author: int, *, emulated: str = "", **changes: Any) -> NodeView:
    facts: dict[str, Any] = {**VERIFIER_RECORD, "pass_us": 5900, "model": f"tiny-{domain}", "expertise": (domain,)}
    record = record_of(0, Role.DRAFTER, peer_id=peer_id, **(facts | {"emulated": emulated}))
    return node_of(peer_id, record=record, author=author, **changes)


def drafts_of(peer_id: str, domain: str, author: int, **facts: Any) -> DrafterView:
    return DrafterView(peer_id=peer_id, domain=domain, author=author, **facts)


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
        "text": (
            TextRun("def add", 1),
            TextRun("(a, ", 0),
            TextRun("b", 0, is_copied=True),
            TextRun("):\n    return a + b", 2),
        ),
        "tokens": 12,
        "origins": (
            OriginView(source=CODE, domain="code", tokens=5, author=1, per_s=7.1),
            OriginView(source=MATH, domain="math", tokens=3, author=2, per_s=4.4),
            OriginView(source=TARGET_SOURCE, is_copied=True, tokens=1, author=0, per_s=1.5),
            OriginView(source=TARGET_SOURCE, tokens=3, author=0, per_s=4.3),
        ),
        "rounds": 6,
        "passes": (0, 2, 3, 0, 1, 2),
        "tokens_per_s": 17.3,
        "verifiers": (VERIFIER,),
        "drafters": (
            drafts_of(
                CODE, "code", 1, rtt_ms=40.0, drafted=120, accepted=5, drafted_per_s=61.0, accepted_per_s=7.1
            ),
            drafts_of(MATH, "math", 2, rtt_ms=44.0, drafted=80, accepted=3, drafted_per_s=40.0, accepted_per_s=4.4),
        ),
        "plain_per_s": 1000 / 62,
        "speeds": Speeds(0.5, (0.0, 8.0, 20.0, 24.0, 17.0)),
        "timeline": (
            Moment(0.0, "asked"),
            Moment(0.31, "the first token came"),
            Moment(1.2, f"verifier {SPARE[-6:]} was lost: the stream ended", is_alert=True),
        ),
        "why": ("code: asked to draft, 10 ms away", "math: dropped, its guesses were seldom right (weight 1 %)"),
    }
    return RequestView(**(fields | changes))


def progress_of(
    tokens: int = 0, *, serving: tuple[str, ...] = (VERIFIER,), code: tuple[int, int] = (0, 0)
) -> Progress:
    return Progress(
        tokens=tokens,
        rounds=2,
        accepted=code[1],
        serving=serving,
        tried=(),
        drafters=(DrafterReport(CODE, "code", *code, 40.0),),
        why=("code: 15 tokens deep",),
        decisions=1,
    )


def account_of() -> Generation:
    return generation(
        completion_tokens=12,
        offered=10,
        accepted=8,
        bytes_sent=812,
        bytes_received=64_200,
        drafters=(),
        verifiers=(VerifierReport(VERIFIER, 41.0, 12),),
    )


TALLY = Tally(
    requests=3,
    drafted=240,
    accepted=42,
    text_tokens=100,
    failed=1,
    failures=(Moment(40.0, "request 5: it was lost: the stream ended"),),
)
NODES = (
    node_of(VERIFIER),
    node_of(SPARE, reason=LOST_REASON, since_s=50.0, rtt_s=None, passes_per_s=None),
    drafter_of(CODE, "code", 1, tally=TALLY, emulated="60/6@10"),
    drafter_of(MATH, "math", 2, requests=16),
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
        request_of(6, is_own=False, state=RequestState.FINISHED, label="math", account=account_of()),
        request_of(7),
    ),
    events=EVENTS,
)
FLOODED = "it flooded this node each time it came back"
BANNED = replace(SNAPSHOT, bans=(Ban(peer_id=SPARE, until_s=62.0 + 3598.0, why=FLOODED, floods=1),))
LOST = replace(
    SNAPSHOT,
    connection=SwarmConnection(
        state=ConnectionState.LOST, since_s=55.0, reason="the DHT did not answer", retry_at_s=66.0
    ),
    events=(*EVENTS, Event(55.0, EventKind.SWARM_LOST, "the DHT did not answer")),
)


class RecordingFeed(Feed):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.asked: list[tuple[str, Options]] = []
        self.cancelled: list[int] = []
        self.is_closed = False
        self.show = self._latest.append

    def fail(self, error: BaseException) -> None:
        self._error = error

    def ask(self, prompt: str, options: Options) -> None:
        self.asked.append((prompt, options))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def close(self) -> None:
        self.is_closed = True


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
