"""Drafters that learn in virtual time: the decisions of `cosine_node.learning.learner` about recorded versions.

What a version knows is recorded (`LearningCurve`); when there is one follows from the texts that the drafter was
shown, with the rules of the store and of the learner: who counts for how much, what is held out, when a round
begins, that it waits for idle time, and that a version serves if it is right more often along what is held out.

Departures: each text of a simulated client stands for a new one, however often it is repeated; the weights of a
version are those that one round from the shipped ones has given; and nothing is rolled back.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final

from cosine_lab.emulation.traces import DATA, Trace, TraceSet
from cosine_lab.simulation.report import LearnerUse, Switch
from cosine_node.drafter.service import DrafterService
from cosine_node.engine.base import Engine
from cosine_node.engine.replaceable import ReplaceableEngine
from cosine_node.learning.decision import Acceptance, goes_live, is_due
from cosine_node.learning.learner import LOOK_EVERY_S, PATIENCE_S, QUIET_S
from cosine_node.learning.stream_store import fair_part, is_held_out
from cosine_node.learning.streams import VerifiedStream
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
    return TraceSet.load(DATA / RECORDED[family])


def learned_tokens(traces: TraceSet, model: str) -> tuple[int, ...]:
    """The numbers of learned tokens after which a drafter is in traces, 0 first. Raises `UsageError` for none."""
    known = next(iter(traces)).drafters
    if model not in known:
        raise UsageError(f"The traces know no drafter {model}.")
    versions = (name.removeprefix(model + LEARNED) for name in known if name.startswith(model + LEARNED))
    return (0, *sorted(map(int, versions)))


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


ROUND_S: Final = 3.0
ROUND_S_PER_TOKEN: Final = 0.003
"""Choices: 2,000 tokens take 9 s and 20,000 take 63 s, where 12 and 44 s were measured (docs/learn.md)."""
SWITCH_S: Final = 1.0
"""Loading the weights of a small model."""


@dataclass(slots=True)
class SimulatedLearner:
    """Keeps the texts of one drafter and puts recorded versions live: serve with `engine`, `attach`, and `run`."""

    curve: LearningCurve
    engine: ReplaceableEngine = field(init=False)
    version: int = 0
    rounds: int = 0
    switches: list[Switch] = field(default_factory=list)
    _learned: list[VerifiedStream] = field(default_factory=list)
    _held_out: list[VerifiedStream] = field(default_factory=list)
    _seen_tokens: int = 0
    _live_from: Acceptance = field(default_factory=Acceptance)
    _busy_at_s: float = 0.0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _service: DrafterService | None = None

    def __post_init__(self) -> None:
        self.engine = ReplaceableEngine(self.curve.engine(0), on_open=self._note_use)

    def attach(self, service: DrafterService) -> None:
        """Learn for this service, which serves with `engine`."""
        self._service = service

    def keep(self, stream: VerifiedStream) -> None:
        """Keep a stream that the target has verified."""
        (self._held_out if is_held_out(stream.tokens) else self._learned).append(stream)
        self._news.set()

    async def run(self) -> None:
        """Learn until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            kept_tokens, held_out_tokens = _tokens(self._learned), _tokens(self._held_out)
            if is_due(new_tokens=kept_tokens - self._seen_tokens, held_out_tokens=held_out_tokens):
                self._seen_tokens = kept_tokens
                await self._learn()

    def use(self, peer_id: str) -> LearnerUse:
        """What became of it so far."""
        return LearnerUse(
            peer_id=peer_id,
            domain=self.curve.domain,
            kept_tokens=_tokens(self._learned) + _tokens(self._held_out),
            rounds=self.rounds,
            switches=tuple(self.switches),
            live=self._live() - self._live_from,
        )

    async def _learn(self) -> None:
        """One round over all that is kept."""
        fair = fair_part(self._learned)
        held_out = [stream.prompt for stream in self._held_out]
        await self._idle(ROUND_S + ROUND_S_PER_TOKEN * _tokens(fair))
        self.rounds += 1
        version = self.curve.version(self._new_tokens(fair))
        before, after = (self.curve.acceptance(one, held_out) for one in (self.version, version))
        if goes_live(before=before, after=after):
            await self._serve(version, before, after)

    def _new_tokens(self, streams: list[VerifiedStream]) -> int:
        """Tokens of other domains than the drafter's own: the recorded versions have learned those alone."""
        find, own = self.curve.traces.find, self.curve.domain
        return _tokens([stream for stream in streams if find(stream.prompt).domain != own])

    async def _idle(self, left_s: float) -> None:
        """Let so many seconds pass in which nobody has been served for a while."""
        loop = asyncio.get_running_loop()
        while left_s > 0:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.engine.open_sequences:
                self._note_use()
            elif loop.time() - self._busy_at_s > QUIET_S:
                left_s -= LOOK_EVERY_S

    async def _serve(self, version: int, before: Acceptance, after: Acceptance) -> None:
        """Serve with a version from the next request on; after a while those that are followed are let go."""
        service, loop = self._service, asyncio.get_running_loop()
        assert service is not None
        await self._unused(until_s=loop.time() + PATIENCE_S)
        service.set_aside(True)
        await asyncio.sleep(SWITCH_S)
        await self._unused()
        self.engine.replace(self.curve.engine(version))
        service.set_aside(False)
        live, self._live_from = self._live() - self._live_from, self._live()
        self.version = version
        self.switches.append(Switch(loop.time(), version, before, after, live))

    async def _unused(self, *, until_s: float = float("inf")) -> None:
        # Its users do not know that anybody waits.
        while self.engine.open_sequences and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S / 10)

    def _live(self) -> Acceptance:
        """Of all requests since the start."""
        assert self._service is not None
        return Acceptance(self._service.counts.right_first_choices, self._service.counts.first_choices)

    def _note_use(self) -> None:
        self._busy_at_s = asyncio.get_running_loop().time()


def _tokens(streams: list[VerifiedStream]) -> int:
    return sum(len(stream.tokens) for stream in streams)
