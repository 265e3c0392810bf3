"""The work of a session: one request, and who may serve it."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cosine_p2p.directory.distances import Distances
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_protocol.fields import Signed
from cosine_protocol.limits import NONCE_BYTES
from cosine_protocol.messages import Mandate
from cosine_protocol.request import Request


class KnownDrafter(Protocol):
    @property
    def peer_id(self) -> str: ...

    @property
    def expertise(self) -> tuple[str, ...]: ...

    @property
    def model(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of a session: the request, who may serve it in order of preference, who may draft.

    `verifiers` gives by peer id the seconds that each announces for a pass, `four_tokens_permille` what it says of
    one over four tokens, and `stages` how many peers compute it where the model is in parts. Where they were found
    in an earlier run, `find_more` waits for a look-up under way and gives all that it finds for the request; they
    are added. `trials` are what was measured of numbers of
    drafters, if any are compared. `has_other_offers` is true if, until something is committed, others could serve
    the request in another form. `more_numbers` are for verifiers asked once more, which may not have ended the
    request of the first number yet. Cached prefixes are shared only with requests of the same `cache_scope`.

    `committed` is the output so far. `mandates` signs those that the client may give, as `coordination` says;
    `mandate` is the one by which somebody else than the client runs this session. `distances` is told how far from
    a verifier that coordinates the drafters are. Drafters see the last `prompt_window_tokens` tokens of the prompt,
    with None the whole of it. With `shares_feedback` they are told
    that they may keep the text and learn from it. The author number `pupil`, 0 for none, is that of a
    drafter that follows it for nothing else: it is told what is committed, and asked for no drafts. `prediction` is
    what the user takes the output to be, for verifiers to draft from. Where a verifier was lost that served the
    request, and nobody is left, `find_again` tells for `patience_s` whom to ask, as `verifiers` does.
    `other_numerics` are those of the target's verifiers that cannot go on with the text.
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
    has_other_offers: Callable[[], bool] = lambda: False
    find_more: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    cache_scope: bytes | None = None
    more_numbers: Iterator[int] = field(default_factory=lambda: iter(()))
    committed: tuple[int, ...] = ()
    mandates: Mandates | None = None
    coordination: Coordination = Coordination.CLIENT
    mandate: Signed[Mandate] | None = None
    distances: Distances | None = None
    prompt_window_tokens: int | None = None
    shares_feedback: bool = False
    pupil: int = 0
    prediction: tuple[int, ...] | None = None
    find_again: Callable[[], Awaitable[Mapping[str, float]]] | None = None
    patience_s: float = 0.0
    other_numerics: Collection[str] = ()

    @property
    def shown_request(self) -> Request:
        """The request as drafters see it: with the end of the prompt alone, where that is wanted."""
        if self.prompt_window_tokens is None:
            return self.request
        # Without the nonce, so that guesses of the rest cannot be tested by the digest.
        shown = self.request.prompt[-self.prompt_window_tokens :]
        return replace(self.request, prompt=shown, nonce=bytes(NONCE_BYTES))
