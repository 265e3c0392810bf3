"""Who takes part: every strategy by name, made from a plain table of options, with the values it is tuned over.

A choice of options names, beside the fields of a strategy's own options:

- `drafter`: `by-label` gives a strategy of one drafter the best one for each prompt's domain, found on the split
  "tune". Nobody could know it for an unlabelled prompt; rivals are allowed it. `own` leaves it to the strategy.
- `law`: how a drafter's first choice comes to be the target's token (`cosine_node.simulation.trace_engine.Law`).
- `policy`: what the verifier does of its own accord under free pacing, a name in `POLICIES`. All but `looks-up`
  leave copying from the text to the drafter that every strategy has for it, so that all have the same source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from cosine_node.bench.oracle import OracleCosine
from cosine_node.simulation.traces import Trace
from cosine_node.verifier.policy import Policy
from cosine_p2p.strategies.base import Strategy
from cosine_p2p.strategies.cosine import Cosine, CosineOptions
from cosine_p2p.strategies.plain import Plain
from cosine_p2p.strategies.published.cosine_paper import CosinePaper, CosinePaperOptions
from cosine_p2p.strategies.published.dsi import Dsi, DsiOptions
from cosine_p2p.strategies.published.pipeinfer import PipeInfer, PipeInferOptions
from cosine_p2p.strategies.published.specinfer import SpecInfer, SpecInferOptions
from cosine_p2p.strategies.published.speculative import Speculative, SpeculativeOptions
from cosine_p2p.strategies.published.spin import Spin, SpinOptions
from cosine_protocol.errors import UsageError

Choice = Mapping[str, Any]

BY_LABEL: Final = "by-label"
OWN: Final = "own"
COUPLED: Final = "coupled"
PUBLISHED: Final = "published"
LOOKS_UP: Final = "looks-up"
NOT_OF_STRATEGIES: Final = frozenset({"drafter", "law", "policy"})
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "ours": Policy(looks_up=False),
        "published": Policy(looks_up=False, waits_for_drafts=False, keeps_account=False, drops_costly_nodes=False),
        "no-waiting": Policy(looks_up=False, waits_for_drafts=False),
        "no-account": Policy(looks_up=False, keeps_account=False),
        "no-dropping": Policy(looks_up=False, drops_costly_nodes=False),
        LOOKS_UP: Policy(),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request: its trace, and the authors of its drafters, the best for its domain first."""

    trace: Trace
    authors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A strategy in the comparison. `build` takes the digest of a request, the choice of options and the case.

    `grid` holds the values of each option in their order, those that depend on the link most first; tuning begins
    at `start`. Where `allows` says no, a choice is not tried. `law` and `policy` stand where a choice has none.
    """

    name: str
    build: Callable[[bytes, Choice, Case], Strategy]
    is_stepped: bool = False
    wants_drafters: bool = True
    verifiers: int = 1
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    start: Choice = field(default_factory=dict)
    allows: Callable[[Choice], bool] = lambda choice: True
    knows_stream: bool = False

    def choices_at(self, temperature: float) -> dict[str, tuple[Any, ...]]:
        """The grid at a temperature: without sampling, the published law says what the shared noise says."""
        return {name: values for name, values in self.grid.items() if temperature or name != "law"}


def _own(choice: Choice) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name not in NOT_OF_STRATEGIES}


def _lone(choice: Choice, case: Case) -> dict[str, Any]:
    """The options of a strategy of one drafter."""
    author = case.authors[0] if choice.get("drafter") == BY_LABEL and case.authors else None
    return {**_own(choice), "author": author}


def _several(choice: Choice, case: Case) -> dict[str, Any]:
    options = _own(choice)
    if choice.get("drafter") == BY_LABEL:
        options["authors"] = case.authors[: options["drafters"]]
    return options


def _speculative(root: bytes, choice: Choice, case: Case) -> Strategy:
    return Speculative(root, options=SpeculativeOptions(**_lone(choice, case)))


def _specinfer(root: bytes, choice: Choice, case: Case) -> Strategy:
    return SpecInfer(root, options=SpecInferOptions(**_several(choice, case)))


def _spin(root: bytes, choice: Choice, case: Case) -> Strategy:
    return Spin(root, options=SpinOptions(**_own(choice)))


def _cosine_paper(root: bytes, choice: Choice, case: Case) -> Strategy:
    return CosinePaper(root, options=CosinePaperOptions(**_own(choice)))


def _pipeinfer(root: bytes, choice: Choice, case: Case) -> Strategy:
    return PipeInfer(root, options=PipeInferOptions(**_lone(choice, case)))


def _dsi(root: bytes, choice: Choice, case: Case) -> Strategy:
    return Dsi(root, options=DsiOptions(**_lone(choice, case)))


def _cosine(root: bytes, choice: Choice, case: Case) -> Strategy:
    return Cosine(root, options=CosineOptions(**_own(choice)))


def _oracle(root: bytes, choice: Choice, case: Case) -> Strategy:
    return OracleCosine(root, stream=case.trace.stream, options=CosineOptions(**_own(choice)))


def _is_chain(choice: Choice) -> bool:
    """The published law is scripted for the first choice alone, so it means nothing for trees."""
    return choice.get("law") != PUBLISHED or choice.get("n_parallel", 1) == 1


_LENGTHS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
_DRAFTERS: Final = (BY_LABEL, OWN)
_LAWS: Final = (COUPLED, PUBLISHED)

PLAIN: Final = Entrant(name="plain", build=lambda root, choice, case: Plain(root), wants_drafters=False)
OURS: Final = Entrant(name="cosine", build=_cosine)
ORACLE: Final = Entrant(name="oracle", build=_oracle, knows_stream=True)
_DSI_GRID: Final = {
    "lookahead_tokens": (None, 1, 2, 3, 4, 6, 8, 12, 16),
    "is_eager": (True, False),
    "drafter": _DRAFTERS,
    "law": _LAWS,
}
_DSI_START: Final = {"lookahead_tokens": None, "is_eager": True, "drafter": BY_LABEL}
RIVALS: Final = (
    Entrant(
        name="speculative",
        build=_speculative,
        is_stepped=True,
        grid={"draft_tokens": _LENGTHS, "drafter": _DRAFTERS, "law": _LAWS},
        start={"draft_tokens": 5, "drafter": BY_LABEL},
    ),
    Entrant(
        name="specinfer",
        build=_specinfer,
        is_stepped=True,
        grid={
            "depth_tokens": _LENGTHS,
            "max_nodes": (4, 8, 12, 16, 24, 32),
            "width_nodes": (1, 2, 3, 4, 6, 8),
            "drafters": (1, 2, 3, 4),
            "drafter": _DRAFTERS,
        },
        start={"depth_tokens": 5, "max_nodes": 12, "width_nodes": 2, "drafters": 2, "drafter": BY_LABEL},
    ),
    Entrant(
        name="spin",
        build=_spin,
        is_stepped=True,
        grid={
            "draft_tokens": _LENGTHS,
            "explore_rounds": (1, 2, 4, 6),
            "exploit_rounds": (8, 16, 64, 256),
            "prior_rounds": (0.0, 4.0, 16.0),
            "law": _LAWS,
        },
        start={"draft_tokens": 5, "explore_rounds": 2, "exploit_rounds": 16, "prior_rounds": 4.0},
    ),
    Entrant(
        name="cosine-paper",
        build=_cosine_paper,
        is_stepped=True,
        grid={
            "draft_tokens": _LENGTHS,
            "drafters": (1, 2, 3, 4, 6),
            "width_nodes": (1, 2),
            "max_nodes": (8, 16, 32),
            "has_prior": (False, True),
            "law": _LAWS,
        },
        start={"draft_tokens": 3, "drafters": 2, "width_nodes": 1, "max_nodes": 16, "has_prior": True},
        allows=lambda choice: choice.get("law") != PUBLISHED or choice["width_nodes"] == 1,
    ),
    Entrant(name="dsi", build=_dsi, is_stepped=True, verifiers=1, grid=_DSI_GRID, start=_DSI_START),
    Entrant(
        name="pipeinfer",
        build=_pipeinfer,
        grid={
            "policy": ("published", "ours"),
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
            "policy": "published",
            "n_parallel": 3,
            "p_split": 0.3,
            "drafter": BY_LABEL,
        },
        allows=_is_chain,
    ),
)
WITH_MORE: Final = (
    Entrant(name="dsi-2", build=_dsi, is_stepped=True, verifiers=2, grid=_DSI_GRID, start=_DSI_START),
)
"""Rivals that are given more machines than everybody else, and named so."""
ENTRANTS: Final[Mapping[str, Entrant]] = MappingProxyType(
    {entrant.name: entrant for entrant in (PLAIN, OURS, *RIVALS, *WITH_MORE, ORACLE)}
)


def entrant(name: str) -> Entrant:
    """The entrant of that name. Raises `UsageError`."""
    if name not in ENTRANTS:
        raise UsageError(f"There is no strategy {name!r} to compare; choose from {', '.join(ENTRANTS)}.")
    return ENTRANTS[name]


def has_option(name: str) -> bool:
    """Whether `CosineOptions` has an option of that name."""
    return name in {option.name for option in fields(CosineOptions)}
