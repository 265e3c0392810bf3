"""The frozen values that the monitor shows: the swarm, its requests and the events so far."""

from dataclasses import dataclass
from enum import Enum, StrEnum

from cosine_protocol.records import Role


class ConnectionState(StrEnum):
    """States of the monitor's way into the swarm."""

    JOINING = "joining"
    LIVE = "live"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConnection:
    """The monitor's own way into the swarm since `since_s`; at `retry_at_s` it tries again."""

    state: ConnectionState = ConnectionState.JOINING
    since_s: float = 0.0
    reason: str = ""
    retry_at_s: float | None = None


class Reachability(StrEnum):
    """States of a node: it answers, or it does not."""

    UP = "up"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as announced and as seen from here.

    `since_s` is when its reachability last changed. `text_share` is the share of the text that it drafted, in the
    requests seen here that it was asked for, None before the first. `author` is a drafter's number, 0 for none.
    """

    peer_id: str
    role: Role
    domains: tuple[str, ...]
    model: str
    numerics: str
    emulated: str
    software: str
    pass_ms: float
    load: int
    capacity: int
    context_tokens: int
    reachability: Reachability
    reason: str
    since_s: float
    rtt_ms: float | None = None
    passes_per_s: float | None = None
    uptime_s: float | None = None
    text_share: float | None = None
    accepted_tokens: int = 0
    author: int = 0


class RequestState(Enum):
    """States of a request, each with the sign that stands for it."""

    ASKING = ("…", "asking")
    WRITING = ("▶", "writing")
    FINISHED = ("✓", "finished")
    CANCELLED = ("■", "cancelled")
    FAILED = ("✗", "failed")

    @property
    def sign(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]

    @property
    def is_over(self) -> bool:
        return self not in (RequestState.ASKING, RequestState.WRITING)


@dataclass(frozen=True, slots=True)
class TextRun:
    """Text of one author in a row; 0 is the target itself."""

    text: str
    author: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterView:
    """A drafter's work for one request: nodes drafted, tokens accepted, and both a second just now."""

    peer_id: str
    domain: str
    author: int
    rtt_ms: float
    drafted: int
    accepted: int
    drafted_per_s: float
    accepted_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request. `passes` are the drafted tokens that each of the verifier's last passes accepted.

    `own_tokens` were the target's own; `own_per_s` and `tokens_per_s` are of just now, of the whole request once it
    is over.
    """

    number: int
    prompt: str
    label: str
    is_own: bool
    strategy: str
    seed: int | None
    state: RequestState
    error: str
    seconds: float
    first_s: float | None
    text: tuple[TextRun, ...]
    tokens: int
    own_tokens: int
    rounds: int
    passes: tuple[int, ...]
    tokens_per_s: float
    own_per_s: float
    finish_reason: str
    verifiers: tuple[str, ...]
    drafters: tuple[DrafterView, ...]
    why: tuple[str, ...]


class EventKind(Enum):
    """Kinds of events: a sign, a word, and True for an alert."""

    JOINED = ("+", "joined", False)
    LEFT = ("-", "left", False)
    UNREACHABLE = ("✗", "unreachable", True)
    REACHABLE = ("✓", "back", False)
    FAILOVER = ("↻", "failover", True)
    FAILED = ("✗", "failed", True)
    SWARM_LOST = ("✗", "swarm lost", True)
    SWARM_FOUND = ("✓", "swarm found", False)

    @property
    def sign(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]

    @property
    def is_alert(self) -> bool:
        return self.value[2]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, `at_s` seconds after the monitor began."""

    at_s: float
    kind: EventKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything at one moment, `at_s` seconds after the monitor began, the oldest request and event first."""

    at_s: float = 0.0
    began_unix_s: float | None = None
    title: str = ""
    target: str = ""
    note: str = ""
    """One line about what is simulated, if anything is."""
    problem: str = ""
    """Why the directory's answer may be incomplete."""
    connection: SwarmConnection = SwarmConnection()
    nodes: tuple[NodeView, ...] = ()
    requests: tuple[RequestView, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def running(self) -> tuple[RequestView, ...]:
        return tuple(request for request in self.requests if not request.state.is_over)

    @property
    def tokens_per_s(self) -> float:
        """Of all requests seen here together."""
        return sum(request.tokens_per_s for request in self.running)

    def node(self, peer_id: str) -> NodeView | None:
        return next((node for node in self.nodes if node.peer_id == peer_id), None)
