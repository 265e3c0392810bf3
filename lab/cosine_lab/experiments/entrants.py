"""The entrants of a comparison: every strategy by name, made from a table of option values, with its grid.

A table of option values contains, besides the fields of a strategy's options:

- `drafter`: `by-label` gives a strategy with one drafter the best one for each prompt's domain, found on the split
  "tune". Without labels it would be unknown; rivals are allowed to use it.
- `law`: how a drafter's first choice becomes the target's token (`cosine_lab.emulation.trace_engine.Law`).
- `policy`: the verifier's own measures under free pacing, a name in `POLICIES`; `ours` and `published` leave prompt
  lookup to the drafter for it that every strategy has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from cosine_lab.emulation.traces import Trace
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_lab.rivals.dsi import Dsi, DsiOptions
from cosine_lab.rivals.pipeinfer import PipeInfer, PipeInferOptions
from cosine_lab.rivals.rounds import SteppedKind
from cosine_lab.rivals.specinfer import SpecInfer, SpecInferOptions
from cosine_lab.rivals.speculative import Speculative, SpeculativeOptions
from cosine_lab.simulation.verifiers import Policy
from cosine_p2p.strategy.base import Strategy, StrategyKind
from cosine_p2p.strategy.cosine import Cosine, CosineOptions
from cosine_p2p.strategy.registry import Plain
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import UsageError

OptionValues = Mapping[str, Any]

# Values of `drafter`, `law` and `policy`, as in the JSON files.
BY_LABEL: Final = "by-label"
COUPLED: Final = "coupled"
PUBLISHED: Final = "published"
SHIPS: Final = "ships"
NOT_OF_STRATEGIES: Final = frozenset({"drafter", "law", "policy"})
"""The names that are not fields of a strategy's options; see above."""
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "ours": Policy(uses_prompt_lookup=False),
        PUBLISHED: Policy(uses_prompt_lookup=False, keeps_account=False, drops_costly_nodes=False),
        SHIPS: Policy(),
        "ships-no-account": Policy(keeps_account=False),
        # For the rivals over a ring of stages, without the account, which none of them has.
        **{f"path-{n}": Policy(keeps_account=False, only_best_path=True, max_nodes=n) for n in (2, 4, 8)},
        **{f"tree-{n}": Policy(keeps_account=False, max_nodes=n) for n in (16, 32)},
    }
)
"""The verifier's own measures under free pacing, by name."""

GENERALIST: Final = "general"
"""The drafter at the verifier, chosen without knowledge of the prompts."""
SHIPPED: Final[Mapping[str, Any]] = MappingProxyType({"coordination": Coordination.AUTO, "home": GENERALIST})
"""The fields of the `Scenario` in which `cosine` runs with its default options, with a drafter at the verifier."""


@dataclass(frozen=True, slots=True)
class RequestCase:
    """One request: its trace, and the authors of its drafters, the best for its domain first."""

    trace: Trace
    authors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A strategy in the comparison: its class, and that of its options, if any.

    `grid` holds the values of each option in order, those that depend most on the link first; tuning begins at
    `start`. For every value of the option `outer` the others are tuned separately. Values that `allows` rejects are
    not tried.
    """

    kind: StrategyKind
    strategy: Callable[..., Strategy]
    options: Callable[..., Any] | None = None
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    start: OptionValues = field(default_factory=dict)
    outer: str = ""
    allows: Callable[[OptionValues], bool] = lambda choice: True

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def is_stepped(self) -> bool:
        """True for a strategy that requests each pass."""
        return isinstance(self.kind, SteppedKind)

    def grid_at(self, temperature: float) -> dict[str, tuple[Any, ...]]:
        """Return the grid at a temperature: without sampling, the published law equals the shared noise."""
        return {name: values for name, values in self.grid.items() if temperature or name != "law"}

    def build(self, root: bytes, choice: OptionValues, case: RequestCase | None) -> Strategy:
        """Return the strategy of the request with the digest `root`; `case` is None if no recording is known."""
        more: dict[str, Any] = {}
        if self.options is not None:
            own = {name: value for name, value in choice.items() if name not in NOT_OF_STRATEGIES}
            if case is not None and choice.get("drafter") == BY_LABEL:
                if "drafters" in own:
                    own["authors"] = case.authors[: own["drafters"]]
                else:
                    own["author"] = case.authors[0] if case.authors else None
            more["options"] = self.options(**own)
        return self.strategy(root, **more)


def _is_chain(choice: OptionValues) -> bool:
    """Return False if the published law would apply to a tree, since it is scripted only for the first choice."""
    return choice.get("law") != PUBLISHED or choice.get("width_nodes", choice.get("n_parallel", 1)) == 1


# From one token to twice the longest draft (10) that tuning found for a strategy with these lengths at any
# round-trip time (docs/benchmarks/rtt.json), in steps that grow as further tokens change less; both kinds of law.
# The drafters are given: on the few prompts of a trial a strategy's own choice would win only by chance.
_LENGTHS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
_DRAFTERS: Final = (BY_LABEL,)
_LAWS: Final = (COUPLED, PUBLISHED)

PLAIN: Final = Entrant(kind=ALL_STRATEGIES["plain"], strategy=Plain)
OURS: Final = Entrant(kind=ALL_STRATEGIES["cosine"], strategy=Cosine, options=CosineOptions)
RIVALS: Final = (
    Entrant(
        kind=ALL_STRATEGIES["speculative"],
        strategy=Speculative,
        options=SpeculativeOptions,
        grid={"draft_tokens": _LENGTHS, "drafter": _DRAFTERS, "law": _LAWS},
        start={"draft_tokens": 5, "drafter": BY_LABEL},
    ),
    Entrant(
        kind=ALL_STRATEGIES["specinfer"],
        strategy=SpecInfer,
        options=SpecInferOptions,
        grid={
            "depth_tokens": (1, 2, 3, 4, 6, 8, 10, 12),
            "max_nodes": (4, 8, 12, 16, 24),
            "width_nodes": (1, 2, 4, 8),
            "drafters": (1, 2, 3),
            "drafter": _DRAFTERS,
        },
        outer="depth_tokens",
        start={"depth_tokens": 6, "max_nodes": 12, "width_nodes": 2, "drafters": 2, "drafter": BY_LABEL},
    ),
    Entrant(
        kind=ALL_STRATEGIES["dsi"],
        strategy=Dsi,
        options=DsiOptions,
        grid={
            "policy": (PUBLISHED, "ours"),
            "lookahead_tokens": (1, 2, 3, 4, 6, 8, 12, 16),
            "drafter": _DRAFTERS,
            "law": _LAWS,
        },
        start={"policy": PUBLISHED, "lookahead_tokens": 1, "drafter": BY_LABEL},
    ),
    Entrant(
        kind=ALL_STRATEGIES["pipeinfer"],
        strategy=PipeInfer,
        options=PipeInferOptions,
        grid={
            "policy": (PUBLISHED, "ours"),
            "p_accept": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
            "draft_tokens": (1, 2, 3, 4),
            "n_parallel": (1, 2, 3, 4),
            "p_split": (0.1, 0.2, 0.3, 0.5, 0.8),
            "drafter": _DRAFTERS,
            "law": _LAWS,
        },
        start={
            "p_accept": 0.1,
            "draft_tokens": 1,
            "policy": PUBLISHED,
            "n_parallel": 3,
            "p_split": 0.3,
            "drafter": BY_LABEL,
        },
        allows=_is_chain,
    ),
)
"""The rivals, each with its tunable options and a published or plausible start."""
ENTRANTS: Final[Mapping[str, Entrant]] = MappingProxyType(
    {entrant.name: entrant for entrant in (PLAIN, OURS, *RIVALS)}
)
"""All entrants by name."""


def entrant(name: str) -> Entrant:
    """Return the entrant with that name. Raises `UsageError`."""
    if name not in ENTRANTS:
        raise UsageError(f"There is no strategy {name!r} to compare; choose from {', '.join(ENTRANTS)}.")
    return ENTRANTS[name]
