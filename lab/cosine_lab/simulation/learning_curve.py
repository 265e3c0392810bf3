"""A drafter at each stage of its learning, as `cosine_lab.training.record_learning` has recorded it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cosine_lab.simulation.traces import Trace, TraceSet
from cosine_node.engine.base import Engine
from cosine_node.learning.decision import Acceptance
from cosine_node.zoo.family import Family
from cosine_protocol.errors import UsageError

LEARNED: Final = "+"
"""Stands between a drafter's name and the number of tokens that it has learned from."""
RECORDED: Final[Mapping[Family, str]] = MappingProxyType(
    {Family.TOY: "toy_learning.npz", Family.SMOL: "smol_learning.npz"}
)
"""The files of a learning drafter of each family that the node comes with."""


def version_name(name: str, tokens: int) -> str:
    """The name of a drafter, or of its model in traces, once it has learned from so many tokens."""
    return f"{name}{LEARNED}{tokens}" if tokens else name


@cache
def learning_traces(family: Family) -> TraceSet:
    """The traces of a family with a drafter that learns. Raises `UsageError` where this installation has none."""
    return TraceSet.load(Path(str(resources.files(__package__))) / "data" / RECORDED[family])


def learned_tokens(traces: TraceSet, model: str) -> tuple[int, ...]:
    """The numbers of learned tokens after which a drafter is in traces, 0 first. Raises `UsageError` for none."""
    known = next(iter(traces)).drafters
    if model not in known:
        raise UsageError(f"The traces know no drafter {model}.")
    versions = (name.removeprefix(model + LEARNED) for name in known if name.startswith(model + LEARNED))
    return (0, *sorted(map(int, versions)))


def learning_domain(traces: TraceSet) -> str:
    """The expertise of the drafter that learns in traces. Raises `UsageError` where none does."""
    for name in next(iter(traces)).drafters:
        model, learned, _ = name.partition(LEARNED)
        if learned:
            return model.partition("-")[2]
    raise UsageError("No drafter of these traces learns.")


def hits_along(trace: Trace, model: str) -> int:
    """The number of tokens of a trace that are the first choice of a drafter."""
    return int((trace.drafters[model].candidate_tokens[:, 0] == trace.stream).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """What a drafter becomes that learns: versions by the tokens learned, and an engine for each.

    `domain` is the expertise that it came with, of which the traces teach it nothing.
    """

    traces: TraceSet
    domain: str
    engine_of: Callable[[str], Engine]
    """Makes an empty engine of the drafter of that expertise."""

    @property
    def model(self) -> str:
        """The drafter's name in the traces, as shipped."""
        return f"draft-{self.domain}"

    def version(self, tokens: int) -> int:
        """The recorded number of learned tokens that is reached with so many."""
        return max(known for known in learned_tokens(self.traces, self.model) if known <= tokens)

    def engine(self, version: int) -> Engine:
        """An engine of a version."""
        return self.engine_of(version_name(self.domain, version))

    def acceptance(self, version: int, prompts: list[tuple[int, ...]]) -> Acceptance:
        """Right first choices of a version along the traces with these prompts."""
        traces = [self.traces.find(prompt) for prompt in prompts]
        right = sum(hits_along(trace, version_name(self.model, version)) for trace in traces)
        return Acceptance(right, sum(len(trace.stream) for trace in traces))
