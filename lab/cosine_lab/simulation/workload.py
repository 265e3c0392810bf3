"""The workload of a scenario: its engines, its requests, and the target's own stream for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cosine_engine import zoo
from cosine_engine.base import PREFIX, Engine, Row
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.loading import load, open_model
from cosine_engine.ngram import NgramEngine
from cosine_engine.pool_size import PoolSize
from cosine_lab.emulation.links import seeded
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.trace_engine import Law, TraceDrafter, TraceTarget
from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.simulation.scenario import EngineSource, Scenario
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

LOOKUP_TOKENS: Final = 32_768
"""Bounds memory: the tokens of a drafter that copies, room for sixteen requests and their trees."""
TREE_TOKENS: Final = 512
"""Room for the live tree of a request."""
MODEL_POOL: Final = PoolSize(exact_tokens=4_096)
"""Bounds memory: room for a request of a model, whose weights each node of a simulation loads."""
TEST_SPLIT: Final = "test"
"""The split of the recorded generations that figures are measured on."""
LOOKUP: Final = "lookup"
"""The expertise of the drafter without weights, which copies from the text so far (`cosine_engine.ngram`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request: a prompt of a domain, at most `max_new_tokens` of output, and the target's own `stream`."""

    domain: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    stream: tuple[int, ...]


def plain_stream(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, *, tokens: int, eos: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the target's own stream, which every simulated run is compared with.

    It has at most `tokens` output tokens after a prompt, up to the first of `eos`, without trees, batches or a
    network.
    """
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    fed, output = tuple(prompt), list[int]()
    try:
        while len(output) < tokens and not (output and output[-1] in eos):
            names = tuple(range(len(fed)))
            row = Row(sequence, fed, names, (PREFIX, *names[:-1]), scored_from=len(fed) - 1)
            output.append(engine.forward([row])[0].choices[0].token)
            engine.keep(sequence, names)
            fed = (output[-1],)
    finally:
        engine.release(sequence)
    return tuple(output)


class Workload(Protocol):
    """The source of a simulation's engines and requests; the same arguments give the same answers."""

    @property
    def eos(self) -> tuple[int, ...]: ...

    @property
    def vocab_tokens(self) -> int: ...

    def target(self, index: int) -> Engine:
        """An empty engine for a verifier."""
        ...

    def drafter(self, index: int) -> Engine:
        """An empty engine for a drafter."""
        ...

    def home(self, index: int) -> Engine:
        """Return an empty engine for the drafter that a verifier holds, of the expertise `Scenario.home`."""
        ...

    def task(self, number: int) -> Task:
        """The request with that number, from 0."""
        ...


def workload_of(scenario: Scenario) -> Workload:
    """The workload that a scenario names. Raises `UsageError`."""
    family = zoo.Family(scenario.family)
    if scenario.source == EngineSource.TRACES:
        return TraceWorkload(scenario, chosen_traces(scenario, TraceSet.load_shipped(family)))
    return ScriptedWorkload(scenario)


class ScriptedWorkload:
    """Engines without weights, random prompts."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.eos = scenario.eos
        self.vocab_tokens = scenario.vocab_tokens

    def target(self, index: int) -> Engine:
        return self._engine()

    def drafter(self, index: int) -> Engine:
        fidelities = self._scenario.fidelities
        return self._engine(fidelity=fidelities[index % len(fidelities)], drafter_seed=index)

    def home(self, index: int) -> Engine:
        return self.drafter(self._scenario.drafters + index)

    def _engine(self, **options: Any) -> Engine:
        scenario = self._scenario
        request_tokens = scenario.prompt_tokens + scenario.max_new_tokens + TREE_TOKENS
        requests = min(scenario.max_requests, scenario.total_requests)
        return ScriptedEngine(vocab_tokens=self.vocab_tokens, pool_tokens=requests * request_tokens, **options)

    def task(self, number: int) -> Task:
        scenario = self._scenario
        rng = seeded(scenario.seed, "task", number)
        prompt = tuple(rng.randrange(self.vocab_tokens) for _ in range(scenario.prompt_tokens))
        sampling = Sampling(temperature=scenario.temperature, seed=rng.getrandbits(63))
        tokens = scenario.max_new_tokens
        stream = plain_stream(self.target(0), prompt, sampling, tokens=tokens, eos=self.eos)
        return Task(
            domain=scenario.domain(number), prompt=prompt, sampling=sampling, max_new_tokens=tokens, stream=stream
        )


def chosen_traces(scenario: Scenario, traces: TraceSet) -> Sequence[Trace]:
    """The traces of a scenario's domains in turn. Raises `UsageError` where there are none."""
    temperature, domains = scenario.temperature, scenario.domains
    chosen = traces.select(split=TEST_SPLIT, temperature=temperature, domains=domains) or traces.select(
        temperature=temperature, domains=domains
    )
    if not chosen:
        raise UsageError(f"No trace was recorded at temperature {temperature:g} in {', '.join(domains)}.")
    return chosen


class TraceWorkload:
    """Replayed traces in their order; a scenario's domains name its drafters."""

    def __init__(self, scenario: Scenario, traces: Sequence[Trace]) -> None:
        self._scenario = scenario
        self._chosen = tuple(traces)
        self.traces = TraceSet(self._chosen)
        self.eos = self.traces.eos
        self.vocab_tokens = self.traces.vocab_tokens

    def target(self, index: int) -> Engine:
        return TraceTarget(self.traces)

    def drafter(self, index: int) -> Engine:
        return self._expert(self._scenario.domain(index))

    def home(self, index: int) -> Engine:
        return self._expert(self._scenario.home)

    def _expert(self, domain: str) -> Engine:
        scenario = self._scenario
        if domain == LOOKUP:
            return lookup_engine(self.vocab_tokens)
        try:
            law = Law(scenario.law)
        except ValueError:
            laws = " or ".join(law.value for law in Law)
            raise UsageError(f"A scenario's law is {laws}, not {scenario.law!r}.") from None
        return TraceDrafter(self.traces, f"draft-{domain}", law=law, is_oracle=scenario.is_oracle)

    def task(self, number: int) -> Task:
        trace = self._chosen[number % len(self._chosen)]
        tokens = min(self._scenario.max_new_tokens, len(trace.stream))
        return Task(
            domain=trace.domain,
            prompt=trace.prompt(),
            sampling=Sampling(temperature=trace.temperature, seed=trace.seed),
            max_new_tokens=tokens,
            stream=trace.stream[:tokens],
        )


class ModelWorkload:
    """The models themselves, over the prompts of recorded texts; `drafted_by` is the model of all drafters."""

    def __init__(self, target_model: str, *, drafted_by: str, traces: Sequence[Trace], max_new_tokens: int) -> None:
        self._target_model = target_model
        self._drafted_by = drafted_by
        self.eos = traces[0].eos
        self.vocab_tokens = traces[0].vocab_tokens
        alone = self.target(0)
        self._tasks = []
        for trace in traces:
            sampling = Sampling(temperature=trace.temperature, seed=trace.seed)
            stream = plain_stream(alone, trace.asked, sampling, tokens=max_new_tokens, eos=self.eos)
            self._tasks.append(
                Task(
                    domain=trace.domain,
                    prompt=trace.asked,
                    sampling=sampling,
                    max_new_tokens=max_new_tokens,
                    stream=stream,
                )
            )

    def target(self, index: int) -> Engine:
        return load(open_model(self._target_model), LoadOptions(pool_size=MODEL_POOL))

    def drafter(self, index: int) -> Engine:
        target = open_model(self._target_model)
        return load(open_model(self._drafted_by), LoadOptions(pool_size=MODEL_POOL), target=target)

    def home(self, index: int) -> Engine:
        return self.drafter(index)

    def task(self, number: int) -> Task:
        return self._tasks[number % len(self._tasks)]


def lookup_engine(vocab_tokens: int) -> Engine:
    """A drafter that needs no model; no context is too long for it."""
    return NgramEngine(vocab_tokens=vocab_tokens, context_tokens=LOOKUP_TOKENS, pool_tokens=LOOKUP_TOKENS)
