"""The input of a session: one request, and the peers that may serve it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cosine_p2p.directory.distances import Distances
from cosine_p2p.own_texts.drafts import OwnDrafts
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_protocol.draft import Mandate
from cosine_protocol.identity import Signed
from cosine_protocol.request import NONCE_BYTES, Request


class KnownDrafter(Protocol):
    @property
    def peer_id(self) -> str: ...

    @property
    def expertise(self) -> tuple[str, ...]: ...

    @property
    def model(self) -> str: ...


class OtherVerifiers:
    """Further verifiers for a request, by peer id with announced seconds per pass. This class has none."""

    other_numerics: Collection[str] = ()
    """Those of verifiers that cannot continue the text."""

    @property
    def has_other_form(self) -> bool:
        """True if, until the first commit, other verifiers could serve the request in another form."""
        return False

    async def present(self) -> Mapping[str, float]:
        """Return those of a look-up in progress, if any."""
        return {}

    async def found_again(self) -> Mapping[str, float]:
        """Return those of a new look-up, best first."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of a session: the request, its verifiers in order of preference, and its drafters.

    By peer id, `verifiers` has announced seconds per pass, `four_tokens_permille` the announced cost of a pass over
    four tokens, and `stages` the number of stages. `trials` has measurements of drafter counts. `more_numbers` are
    for verifiers that are asked again, which may not have ended the first request yet. Only requests of the same
    `cache_scope` share cached prefixes.

    `committed` is the output so far. `mandates` signs mandates as `coordination` allows; `mandate` is the one by
    which a verifier runs this session. `distances` records those of drafters to a coordinating verifier. Drafters
    see the last `prompt_window_tokens` tokens of the prompt, with None all of it. Verifiers draft from
    `prediction`, the output that the user expects, and the client by `own_texts` of what the request holds. After a
    verifier was lost and none is left, `others` are looked for again for `patience_s`.
    """

    number: int
    deadline_s: float
    request: Request
    strategy: StrategyKind
    verifiers: dict[str, float]
    drafters: Sequence[KnownDrafter]
    four_tokens_permille: Mapping[str, int | None] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    trials: SpeedTrials = field(default_factory=lambda: SpeedTrials(()))
    cache_scope: bytes | None = None
    more_numbers: Iterator[int] = field(default_factory=lambda: iter(()))
    committed: tuple[int, ...] = ()
    mandates: Mandates | None = None
    coordination: Coordination = Coordination.CLIENT
    mandate: Signed[Mandate] | None = None
    distances: Distances | None = None
    prompt_window_tokens: int | None = None
    prediction: tuple[int, ...] | None = None
    own_texts: Callable[[Sequence[int]], OwnDrafts] | None = None
    others: OtherVerifiers = field(default_factory=OtherVerifiers)
    patience_s: float = 0.0

    @property
    def shown_request(self) -> Request:
        """The request as drafters see it, with only the end of the prompt if `prompt_window_tokens` is set."""
        if self.prompt_window_tokens is None:
            return self.request
        # Without the nonce, so that guesses of the rest cannot be checked against the digest.
        shown = self.request.prompt[-self.prompt_window_tokens :]
        return replace(self.request, prompt=shown, nonce=bytes(NONCE_BYTES))
