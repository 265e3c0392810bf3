"""The work of a session: one request, and who may serve it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cosine_p2p.speed_trial import SpeedTrial
from cosine_p2p.strategies.base import StrategyKind
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of a session: the request, who may serve it in order of preference, who may draft.

    `trial` is that of the first verifier, if numbers of drafters are compared. `has_other_offers` is true if, until
    something is committed, others could serve the request in another form. `more_numbers` are for verifiers asked
    once more, which may not have ended the request of the first number yet. Cached prefixes are shared only with
    requests of the same `cache_scope`.
    """

    number: int
    deadline_s: float
    request: Request
    strategy: StrategyKind
    verifiers: tuple[NodeRecord, ...]
    drafters: tuple[NodeRecord, ...]
    trial: SpeedTrial | None = None
    has_other_offers: bool = False
    cache_scope: bytes | None = None
    more_numbers: Iterator[int] = field(default_factory=lambda: iter(()))
