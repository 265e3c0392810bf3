"""The input of a session: a request and its peers as a value, and what the sessions of one client share. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from cosine_p2p.directory.distances import Distances
from cosine_p2p.request.offload import Offload
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.transport.link import PeerLinks
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_p2p.trust.standing import Standings
from cosine_protocol.draft import Mandate
from cosine_protocol.identity import Signed
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import NONCE_BYTES, Request


class KnownDrafter(Protocol):
    """A drafter by its record, or by its name in a mandate."""

    @property
    def peer_id(self) -> str: ...

    @property
    def expertise(self) -> tuple[str, ...]: ...

    @property
    def model(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AnnouncedVerifier:
    """The facts in a verifier's record: seconds per pass, stages, and the cost of a pass over four tokens."""

    pass_s: float
    stages: int = 0
    four_tokens_permille: int | None = None

    @classmethod
    def by_peer(cls, records: Sequence[NodeRecord]) -> dict[str, "AnnouncedVerifier"]:
        return {
            record.peer_id: cls(record.pass_us / 1e6, len(record.stages or ()), record.four_tokens_permille)
            for record in records
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The request of one session, its peers, and the rules for them."""

    request: Request
    strategy: StrategyKind
    verifiers: Mapping[str, AnnouncedVerifier]
    """In order of preference, by peer id."""
    drafters: Sequence[KnownDrafter]
    """In the order of their author numbers, which begin at 1."""
    deadline_s: float
    """The time of the event loop's clock at which the session fails."""
    patience_s: float = 0.0
    """Maximum time to look for another verifier after one was lost and none is left."""
    committed: tuple[int, ...] = ()
    """The output so far."""
    prediction: tuple[int, ...] | None = None
    """The output that the user expects; verifiers draft from it."""
    cache_scope: bytes | None = None
    """Only requests with the same value share cached prefixes."""
    coordination: Coordination = Coordination.CLIENT
    mandate: Signed[Mandate] | None = None
    """The mandate by which a verifier runs this session."""
    prompt_window_tokens: int | None = None
    """Number of tokens that drafters see, from the end of the prompt; None for all."""

    @property
    def shown_request(self) -> Request:
        """The request as drafters see it, with only the end of the prompt if `prompt_window_tokens` is set."""
        if self.prompt_window_tokens is None:
            return self.request
        # Without the nonce, so that guesses of the rest cannot be checked against the digest.
        shown = self.request.prompt[-self.prompt_window_tokens :]
        return replace(self.request, prompt=shown, nonce=bytes(NONCE_BYTES))


class OtherVerifiers:
    """Further verifiers that a session may ask for. This class has none."""

    other_numerics: Collection[str] = ()
    """Numerics of verifiers that serve the target but cannot continue the text."""

    @property
    def has_other_form(self) -> bool:
        """True if, until the first commit, other verifiers could serve the request in another form."""
        return False

    async def present(self) -> Mapping[str, AnnouncedVerifier]:
        """Return the verifiers of a look-up in progress, if there is one."""
        return {}

    async def found_again(self) -> Mapping[str, AnnouncedVerifier]:
        """Return the verifiers of a new look-up, best first."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The state that the sessions of one client share: links, threads, and measurements of peers."""

    links: PeerLinks
    offload: Offload
    """Runs checks of signatures."""
    failures: PeerFailures = field(default_factory=PeerFailures)
    speeds: PeerSpeeds = field(default_factory=PeerSpeeds)
    standings: Standings = field(default_factory=Standings)
    trials: Mapping[str, SpeedTrials] = field(default_factory=dict)
    """Measurements of drafter counts, by the name of the strategy."""
    distances: Distances = field(default_factory=lambda: Distances(lambda: 0.5))
    mandates: Mandates | None = None
    """Signs mandates; None for a client without a key."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """The numbers of requests on links."""
