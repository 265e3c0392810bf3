"""The immutable values that the monitor shows: the swarm, its requests and the events."""

from dataclasses import dataclass
from enum import Enum, StrEnum

from cosine_p2p.request.origins import FORCED_SOURCE, HOME_SOURCE, Origin
from cosine_p2p.request.results import DrafterReport, Generation
from cosine_p2p.survey import NodeSight
from cosine_p2p.trust.denied_peers import Ban
from cosine_protocol.records import GenerationDefaults, Role
from cosine_tui.looks.formatting import short_name


class ConnectionState(StrEnum):
    """States of the monitor's connection to the swarm."""

    JOINING = "joining"
    LIVE = "live"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConnection:
    """The monitor's connection to the swarm since `since_s`; it retries at `retry_at_s`."""

    state: ConnectionState = ConnectionState.JOINING
    since_s: float = 0.0
    reason: str = ""
    retry_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """An incident `at_s` seconds after the beginning of a request or of the monitor."""

    at_s: float
    text: str
    is_alert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A node's part in the requests seen here; `failures` are the latest."""

    requests: int = 0
    drafted: int = 0
    accepted: int = 0
    text_tokens: int = 0
    failed: int = 0
    failures: tuple[Moment, ...] = ()

    @property
    def text_share(self) -> float | None:
        """A drafter's share of the text, None before the first token."""
        return self.accepted / self.text_tokens if self.text_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView(NodeSight):
    """A node as surveyed, and as seen from here.

    `since_s`: the last change of its reachability. `author`: a drafter's number, 0 for other nodes.
    """

    since_s: float
    passes_per_s: float | None = None
    tally: Tally = Tally()
    author: int = 0

    @property
    def is_up(self) -> bool:
        return not self.reason

    @property
    def load(self) -> int:
        """Its present requests, as announced unless it answered."""
        return self.record.load_requests if self.requests is None else self.requests

    @property
    def rtt_ms(self) -> float | None:
        return None if self.rtt_s is None else 1e3 * self.rtt_s

    @property
    def peer_id(self) -> str:
        return self.record.peer_id

    @property
    def role(self) -> Role:
        return Role(self.record.role)

    @property
    def title(self) -> str:
        """`code drafter 4fQk2v`."""
        domains = f"{'+'.join(self.record.expertise)} " if self.record.expertise and self.author else ""
        return f"{domains}{self.role} {short_name(self.peer_id)}"

    @property
    def pass_ms(self) -> float:
        return self.record.pass_us / 1e3

    @property
    def capacity(self) -> int:
        return self.record.capacity_requests


class RequestState(Enum):
    """States of a request, each with its sign and word."""

    ASKING = ("…", "asking")
    WRITING = ("▶", "writing")
    FINISHED = ("✓", "finished")
    CANCELLED = ("■", "cancelled")
    FAILED = ("✗", "failed")

    def __init__(self, sign: str, word: str) -> None:
        self.sign, self.word = sign, word

    @property
    def is_over(self) -> bool:
        return self not in (RequestState.ASKING, RequestState.WRITING)


@dataclass(frozen=True, slots=True)
class TextRun:
    """Consecutive text of one author; 0 is the target, which decoded or copied it."""

    text: str
    author: int
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speed of a request since its beginning, in tokens a second per interval of `interval_s`."""

    interval_s: float = 1.0
    per_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterView(DrafterReport):
    """A drafter's work for one request, with its present rates."""

    author: int
    drafted_per_s: float
    accepted_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginView(Origin):
    """An origin of a request's text with its present rate; `author` is a drafter's number, 0 for others."""

    author: int
    per_s: float

    @property
    def is_verifier_draft(self) -> bool:
        """True if the verifier drafted it: copied, forced, or by its drafter."""
        return self.is_copied or self.source in (HOME_SOURCE, FORCED_SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDescription:
    """A request before it starts. `label` is its subject in one word, "" if unknown."""

    prompt: str
    strategy: str
    label: str = ""
    is_own: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView(RequestDescription):
    """One request. `passes` are the accepted drafted tokens of each of the last passes.

    `plain_per_s` is the speed of plain decoding, a lower bound unless measured, None before that. `origins` add up
    to all tokens. Rates are the present ones, or those of the whole request once it is over; a request that began
    then has an `account`.
    """

    number: int
    seed: int | None
    state: RequestState
    error: str
    seconds: float
    first_s: float | None
    text: tuple[TextRun, ...]
    tokens: int
    origins: tuple[OriginView, ...]
    rounds: int
    passes: tuple[int, ...]
    tokens_per_s: float
    verifiers: tuple[str, ...]
    drafters: tuple[DrafterView, ...]
    why: tuple[str, ...]
    plain_per_s: float | None = None
    is_plain_measured: bool = True
    speeds: Speeds = Speeds()
    timeline: tuple[Moment, ...] = ()
    account: Generation | None = None


class EventKind(Enum):
    """Kinds of events, each with its sign, word, and True for an alert."""

    JOINED = ("+", "joined", False)
    LEFT = ("-", "left", False)
    UNREACHABLE = ("✗", "unreachable", True)
    REACHABLE = ("✓", "back", False)
    FAILOVER = ("↻", "failover", True)
    FAILED = ("✗", "failed", True)
    SWARM_LOST = ("✗", "swarm lost", True)
    SWARM_FOUND = ("✓", "swarm found", False)

    def __init__(self, sign: str, word: str, is_alert: bool) -> None:
        self.sign, self.word, self.is_alert = sign, word, is_alert


@dataclass(frozen=True, slots=True)
class Event:
    """An event `at_s` seconds after the beginning of the monitor."""

    at_s: float
    kind: EventKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state `at_s` seconds after the beginning of the monitor, with the oldest request and event first."""

    at_s: float = 0.0
    began_unix_s: float | None = None
    title: str = ""
    target: str = ""
    note: str = ""  # One line about the simulation, if any.
    problem: str = ""  # Why the directory's answer may be incomplete.
    connection: SwarmConnection = SwarmConnection()
    nodes: tuple[NodeView, ...] = ()
    bans: tuple[Ban, ...] = ()  # Bans of this user's nodes and clients, the earliest end first.
    requests: tuple[RequestView, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def running(self) -> tuple[RequestView, ...]:
        return tuple(request for request in self.requests if not request.state.is_over)

    @property
    def generation_defaults(self) -> GenerationDefaults | None:
        verifiers = (node.record for node in self.nodes if node.role is Role.VERIFIER)
        return next((record.generation_defaults for record in verifiers), None)

    @property
    def tokens_per_s(self) -> float:
        """The speed of all running requests together."""
        return sum(request.tokens_per_s for request in self.running)

    def node(self, peer_id: str) -> NodeView | None:
        return next((node for node in self.nodes if node.peer_id == peer_id), None)

    def request(self, number: int) -> RequestView | None:
        return next((request for request in self.requests if request.number == number), None)
