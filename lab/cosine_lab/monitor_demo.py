"""A simulated swarm to watch: the production nodes and clients on an in-memory network, replaying recorded text.

Verifiers and drafters die and return at intervals. It needs no network, weights or torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Final

from cosine_engine import zoo
from cosine_lab.emulation.links import seeded
from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.emulation.virtual_loop import PacedLoop, run_virtual
from cosine_lab.simulation.participants import Participants, identity_of
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.report import EventLog
from cosine_lab.simulation.scenario import EngineSource, Scenario
from cosine_lab.simulation.workload import LOOKUP, TEST_SPLIT, TraceWorkload, chosen_traces
from cosine_p2p.client import AsyncClient
from cosine_p2p.survey import Surveyor
from cosine_p2p.text.token_effects import REPLACEMENT
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_tui.sources.running_requests import RunningRequests
from cosine_tui.state.feed import Feed, ThreadFeed
from cosine_tui.state.monitor_state import MonitorState
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import RequestDescription, Snapshot

SURVEY_EVERY_S: Final = 1.0
"""More often than in a real network, since surveys of a simulated one are free."""
MEAN_PAUSE_S: Final = 1.0
"""Pause between two requests of a client."""
# Of every 45 s a verifier is away for 12 and later a drafter for 8, for five hours: so within a minute a user #
# sees both fail and return, and for more than half of the time all are present. A verifier stays away for three
# times the 4 s after which a silent one is left.
FIRST_DEATH_S: Final = 20.0
DEATHS_EVERY_S: Final = 45.0
DEATHS: Final = 400
VERIFIER_DEAD_S: Final = 12.0
DRAFTER_DEAD_S: Final = 8.0
DRAFTER_DIES_AFTER_S: Final = 25.0
PROFILE: Final = "120/8"
"""Eight passes a second, half of the usual profile, for watching."""
RTT_MS: Final = 40.0
NOTE: Final = f"simulated: recorded text, emulated {PROFILE} ms, RTT {RTT_MS:g} ms"


def demo_scenario(seed: int) -> Scenario:
    """Three verifiers and a drafter for each domain, one of which dies at intervals."""
    deaths = [FIRST_DEATH_S + number * DEATHS_EVERY_S for number in range(DEATHS)]
    faults = [f"restart-verifier=1@{at_s:g}+{VERIFIER_DEAD_S:g}" for at_s in deaths]
    faults += [f"restart-drafter=1@{at_s + DRAFTER_DIES_AFTER_S:g}+{DRAFTER_DEAD_S:g}" for at_s in deaths]
    return Scenario(
        name="monitor",
        seed=seed,
        verifiers=3,
        drafters=7,
        domains=(*zoo.DOMAINS, "general", LOOKUP),
        profile=PROFILE,
        rtt_ms=RTT_MS,
        jitter_ms=4.0,
        clients=3,
        source=EngineSource.TRACES,
        max_new_tokens=128,
        faults=",".join(faults),
    )


class ReplayCodec(TextTokenizer):
    """A substitute for a tokenizer in a swarm that replays traces: a prompt is the number of one."""

    def __init__(self, traces: TraceSet) -> None:
        super().__init__({"tokenizer.json": (zoo.tokenizer_folder() / "tokenizer.json").read_bytes()})
        self._traces = traces

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        return self._traces.numbered(int(text)).prompt()

    def can_follow(self, prompt: Sequence[int]) -> bool:
        """Return True if the text after a stand-in prompt can be separated from it."""
        return not self.decode(prompt).endswith(REPLACEMENT)


class Repertoire:
    """The recorded requests: all domains in turn, or the next of one domain."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces
        self._turns = count()
        self._turns_of = {trace.domain: count() for trace in traces}

    def next(self) -> Trace:
        return self._traces[next(self._turns) % len(self._traces)]

    def answering(self, prompt: str) -> Trace:
        """Return the next one of the first domain that a prompt names, or simply the next."""
        named = next((word for word in prompt.lower().split() if word in self._turns_of), None)
        if named is None:
            return self.next()
        of_domain = [trace for trace in self._traces if trace.domain == named]
        return of_domain[next(self._turns_of[named]) % len(of_domain)]


class DemoSource:
    """A `SnapshotSource`; equal seeds and equal virtual times give equal snapshots."""

    def __init__(self, *, seed: int = 1) -> None:
        self._scenario = demo_scenario(seed)
        traces = TraceSet.load_shipped()
        self._workload = TraceWorkload(self._scenario, chosen_traces(self._scenario, traces))
        self._codec = ReplayCodec(traces)
        recorded = traces.select(split=TEST_SPLIT, temperature=0.0, domains=zoo.DOMAINS)
        self._repertoire = Repertoire([trace for trace in recorded if self._codec.can_follow(trace.prompt())])
        self._state = MonitorState(title="demo", target=TARGET, note=NOTE)
        self._requests: RunningRequests | None = None
        self._client: AsyncClient | None = None

    async def run(self, publish: Callable[[Snapshot], None]) -> None:
        participants = Participants(self._scenario, self._workload, EventLog())
        participants.swarm.codec = self._codec
        async with participants.swarm:
            await participants.start_nodes()
            requests = self._requests = RunningRequests(self._state)
            self._client = await participants.swarm.client(identity=identity_of("monitor", 0))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._survey(participants, requests))
                    group.create_task(participants.run_faults())
                    for index in range(self._scenario.clients):
                        client = await participants.client(index)
                        group.create_task(self._keep_asking(index, client, requests))
                    group.create_task(requests.publish(publish))
            finally:
                await requests.close()

    def ask(self, prompt: str, options: Options) -> None:
        if self._requests is None or self._client is None:
            return
        trace = self._repertoire.answering(prompt)
        asked = RequestDescription(prompt=prompt, strategy=options.strategy, label=trace.domain)
        self._requests.begin(
            self._client,
            str(trace.number),
            asked,
            max_new_tokens=options.max_new_tokens,
            seed=trace.seed,
            strategy=options.strategy,
        )

    def cancel(self, number: int) -> None:
        if self._requests is not None:
            self._requests.cancel(number)

    async def _survey(self, participants: Participants, requests: RunningRequests) -> None:
        swarm = participants.swarm.client_swarm(identity_of("surveyor", 0))
        surveyor = Surveyor(swarm, target=TARGET)
        try:
            while True:
                survey = await surveyor.survey()
                self._state.add_survey(survey, requests.now_s())
                self._state.mark_live(requests.now_s())
                await asyncio.sleep(SURVEY_EVERY_S)
        finally:
            await surveyor.close()
            await swarm.close()

    async def _keep_asking(self, index: int, client: AsyncClient, requests: RunningRequests) -> None:
        rng = seeded(self._scenario.seed, "pauses", index)
        for number in count(1):
            await asyncio.sleep(rng.expovariate(1 / MEAN_PAUSE_S))
            trace = self._repertoire.next()
            prompt = f"client {index + 1}, request {number}: a recorded {trace.domain} prompt"
            asked = RequestDescription(
                prompt=prompt, strategy=self._scenario.strategy, label=trace.domain, is_own=False
            )
            await requests.begin(
                client, str(trace.number), asked, max_new_tokens=self._scenario.max_new_tokens, seed=trace.seed
            )


def demo_feed(seed: int, speed: float) -> Feed:
    """Return the demo for the screen, at `speed` simulated seconds per real one."""
    return ThreadFeed(DemoSource(seed=seed), loop_factory=partial(PacedLoop, speed))


def demo_snapshot(seed: int, after_s: float, *, prompts: Mapping[float, str] = MappingProxyType({})) -> Snapshot:
    """Return the last snapshot before `after_s` virtual seconds; `prompts` are sent at their seconds."""
    source = DemoSource(seed=seed)
    snapshots: deque[Snapshot] = deque([Snapshot()], maxlen=1)

    async def run() -> Snapshot:
        running = asyncio.ensure_future(source.run(snapshots.append))
        loop = asyncio.get_running_loop()
        for at_s, prompt in sorted(prompts.items()):
            loop.call_at(loop.time() + at_s, source.ask, prompt, Options())
        await asyncio.sleep(after_s)
        snapshot = snapshots[-1]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return snapshot

    return run_virtual(run())
