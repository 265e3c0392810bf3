"""What a drafter's learning costs its drafts, by the clock: `python -m tests.e2e.measure_learning_latency`.

A bootstrap node, a verifier and two drafters of one model, each a process; one drafter learns all the time that
nobody asks it. Requests go in turn to that one, and to the other one while the first does not learn, each after
some idle seconds and then at once after one another. Tells how long drafts took from the commit that they follow,
how long requests took, and how much processor time learning had in the idle seconds. `switch` tells for how long
clients are told to come back later while weights that turned out better are loaded.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import psutil  # type: ignore[import-untyped]  # no stubs among the dependencies
from numpy.typing import NDArray

from cosine_lab.report.intervals import bootstrap_interval
from cosine_lab.rivals import RIVALS
from cosine_node import zoo
from cosine_node.drafter.observer import NO_GUESS
from cosine_node.learning.home import find_homes
from cosine_node.learning.stream_store import StreamStore
from cosine_node.learning.streams import VerifiedStream
from cosine_p2p import AsyncClient
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import PeerLost
from cosine_protocol.protocols import DRAFT
from cosine_protocol.request import Sampling
from tests.e2e.nodes import Node, close_all
from tests.e2e.reference import encoded, greedy

MODEL: Final = "zoo:draft-code"
DOMAIN: Final = "code"
OTHER_DOMAINS: Final = ("dialogue", "medical", "math")
IDLE_S: Final = 3.0
AT_ONCE: Final = 2
"""Requests that follow the first one of a turn without a pause."""
NEW_TOKENS: Final = 48
PROMPTS: Final = 8
STREAMS: Final = 200
STREAM_TOKENS: Final = 60
NEW_STREAMS: Final = 50
"""So many are kept anew each turn, so that a round begins as soon as one has ended."""
KNOWN_TOKENS: Final = 2000
PATIENCE_S: Final = 240.0
PROBE_S: Final = 0.02
WITHOUT, BESIDE = "without", "beside"


@dataclass(slots=True)
class Drafting:
    """How long drafts take: the first of a request from `Start`, others from the newest commit before them."""

    first_s: float = 0.0
    later_s: list[float] = field(default_factory=list)
    _asked_s: float | None = None

    def said(self, message: m.Message) -> None:
        if isinstance(message, m.Start | m.Advance) and (self.first_s or self._asked_s is None):
            self._asked_s = time.perf_counter()

    def heard(self, message: m.Message) -> None:
        if isinstance(message, m.Fragment) and self._asked_s is not None:
            took_s, self._asked_s = time.perf_counter() - self._asked_s, None
            if self.first_s:
                self.later_s.append(took_s)
            else:
                self.first_s = took_s


@contextmanager
def timing(drafting: Drafting) -> Iterator[None]:
    """Note meanwhile what all drafters of this process are told and say."""
    post, receive = Channel.post, Channel.receive

    def noted_post(self: Channel, message: m.Message) -> bool:
        if self.protocol == DRAFT:
            drafting.said(message)
        return post(self, message)

    async def noted_receive(self: Channel) -> m.Message:
        message = await receive(self)
        if self.protocol == DRAFT:
            drafting.heard(message)
        return message

    with patch.object(Channel, "post", noted_post), patch.object(Channel, "receive", noted_receive):
        yield


@dataclass(slots=True)
class LearningSwarm:
    """The processes, and the folder in which one drafter learns."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)

    def begin(self, name: str, *arguments: str, **environment: str) -> Node:
        peers = ("--initial-peers", self.nodes["boot"].maddr) if self.nodes else ()
        self.nodes[name] = Node.start(name, (*arguments, *peers), self.folder, **environment)
        return self.nodes[name].wait_ready()

    def begin_drafter(self, name: str, *options: str) -> Node:
        place = ("--identity", str(self.folder / f"{name}.key"), "--threads", "1", "--dtype", "float32")
        state = str(self.folder / "state")
        return self.begin(
            name, "join", "--role", "drafter", "--model", MODEL, *place, *options, XDG_STATE_HOME=state
        )

    def begin_learner(self, streams: Sequence[VerifiedStream]) -> Node:
        """Start the drafter that learns, with texts that it has kept."""
        self.begin_drafter(BESIDE, "--learn").stop()
        self.keep(streams)
        return self.begin_drafter(BESIDE, "--learn")

    def keep(self, streams: Sequence[VerifiedStream]) -> None:
        """Keep texts anew, as if they had come just now."""
        [(home, _)] = find_homes(self.folder / "state" / "cosine-p2p" / "learned")
        with closing(StreamStore(home)) as store:
            for stream in streams:
                store.add(stream)

    def learning_s(self) -> float:
        """The processor time that learning has had so far."""
        process = psutil.Process(self.nodes[BESIDE].process.pid)
        ended = process.cpu_times()
        running = [each.cpu_times() for each in process.children() if each.name() != "p2pd"]
        return float(ended.children_user + ended.children_system + sum(each.user + each.system for each in running))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.nodes[BESIDE].log.read_text().splitlines()
        return [
            event for line in lines if line.startswith("{") and (event := json.loads(line)).get("event") == name
        ]

    def client(self, *names: str) -> AsyncClient:
        """A client of these nodes alone, which lets drafters keep its texts."""
        return AsyncClient(
            [self.nodes["boot"].maddr],
            dtype="float32",
            audit=0,
            strategy="speculative",
            strategies=RIVALS,
            coordination="client",
            share_feedback=True,
            trust=[self.nodes[name].peer_id for name in names],
        )


def random_streams() -> list[VerifiedStream]:
    """Texts to learn from that make nothing better: no weights change while drafts are timed."""
    rng = random.Random(1)
    return [
        _stream(number, [rng.randrange(KNOWN_TOKENS) for _ in range(40)], rng.choices(range(KNOWN_TOKENS), k=60))
        for number in range(STREAMS)
    ]


def prompts_of(domain: str) -> list[str]:
    return [one.messages[-1].content if one.messages else one.text for one in zoo.prompts(domain)]


def target_streams() -> list[VerifiedStream]:
    """What the target writes in domains that the drafter knows little of."""
    asked = [text for domain in OTHER_DOMAINS for text in prompts_of(domain)]
    prompts = [encoded(text[: len(text) * part // 2]) for part in (1, 2) for text in asked]
    return [
        _stream(number, prompt, greedy(prompt, STREAM_TOKENS)) for number, prompt in enumerate(prompts) if prompt
    ]


def _stream(number: int, prompt: Sequence[int], tokens: Sequence[int]) -> VerifiedStream:
    guesses = (NO_GUESS,) * len(tokens)
    return VerifiedStream(
        client=str(number % 4),
        sampling=Sampling(),
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        guesses=guesses,
        failed=(),
    )


@contextmanager
def learning_swarm(streams: Sequence[VerifiedStream]) -> Iterator[LearningSwarm]:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        swarm = LearningSwarm(Path(folder))
        try:
            swarm.begin("boot", "bootstrap")
            engine = ("--model", "zoo:target", "--threads", "1", "--dtype", "float32")
            swarm.begin("verifier", "join", "--role", "verifier", *engine)
            swarm.begin_drafter(WITHOUT)
            swarm.begin_learner(streams)
            yield swarm
        finally:
            close_all(list(swarm.nodes.values()))


@asynccontextmanager
async def drafting_for(client: AsyncClient, peer_id: str) -> AsyncIterator[Channel]:
    """A stream to a drafter on which everything it says but `Started` and `Busy` is thrown away."""
    stream = await client._joined().swarm.transport.dial(peer_id, DRAFT)
    async with Channel(stream, DRAFT) as channel:
        yield channel


@asynccontextmanager
async def held(client: AsyncClient, peer_id: str) -> AsyncIterator[None]:
    """A request that a drafter follows meanwhile without drafting: so it does not learn."""
    request = (await client.start("x = 1")).request

    async def listen(channel: Channel) -> None:
        while True:
            await channel.receive()

    async with drafting_for(client, peer_id) as channel:
        channel.post(m.Start(1, request, ()))
        listening = asyncio.ensure_future(listen(channel))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            channel.post(m.Release(1))


@dataclass(slots=True)
class Turn:
    """Requests after some idle seconds: seconds of each, its drafts, and the learning while nobody asked."""

    seconds: list[float]
    drafts: list[Drafting]
    learning_s: float


async def turn(swarm: LearningSwarm, client: AsyncClient, prompts: Sequence[str]) -> Turn:
    before_s = swarm.learning_s()
    await asyncio.sleep(IDLE_S)
    done = Turn([], [], swarm.learning_s() - before_s)
    for prompt in prompts:
        drafting = Drafting()
        began_s = time.perf_counter()
        with timing(drafting):
            generation = await client.generate(prompt, max_new_tokens=NEW_TOKENS)
        done.seconds.append(time.perf_counter() - began_s)
        done.drafts.append(drafting)
        assert generation.token_ids == greedy(encoded(prompt), NEW_TOKENS), prompt
    return done


async def in_turns(
    swarm: LearningSwarm, *, for_s: float, streams: Sequence[VerifiedStream]
) -> dict[str, list[Turn]]:
    """Turns of both ways side by side, in random order, until the time is over."""
    rng = random.Random(0)
    texts = prompts_of(DOMAIN)[:PROMPTS]
    for text in texts:
        greedy(encoded(text), NEW_TOKENS)
    turns: dict[str, list[Turn]] = {WITHOUT: [], BESIDE: []}
    async with swarm.client("verifier", WITHOUT) as plain, swarm.client("verifier", BESIDE) as learning:
        clients = {WITHOUT: plain, BESIDE: learning}
        for client in clients.values():
            await turn(swarm, client, texts)
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            prompts = rng.sample(texts, 1 + AT_ONCE)
            swarm.keep(rng.sample(streams, NEW_STREAMS))
            for way in rng.sample([WITHOUT, BESIDE], 2):
                if way == BESIDE:
                    turns[way].append(await turn(swarm, learning, prompts))
                else:
                    async with held(learning, swarm.nodes[BESIDE].peer_id):
                        turns[way].append(await turn(swarm, plain, prompts))
    return turns


def ratio_of_medians(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of what took place beside learning over that without; the shape is (samples, turns, 2, values)."""
    found: NDArray[np.float64] = np.median(pairs[:, :, 1], axis=(1, 2)) / np.median(pairs[:, :, 0], axis=(1, 2))
    return found


def compared(turns: dict[str, list[Turn]], values_of: Any) -> dict[str, object]:
    """Medians of both ways in milliseconds, their ratio and its 95 % interval over turns."""
    values = [[values_of(one) for one in turns[way]] for way in (WITHOUT, BESIDE)]
    # As many of each turn, for arrays: those in the middle of what it has.
    least = min(len(each) for way in values for each in way)
    pairs = np.array([[_spread(each, least) for each in way] for way in values]).transpose(1, 0, 2)
    low, high = bootstrap_interval(pairs, ratio_of_medians, seed=0)
    all_s = [[second for each in way for second in each] for way in values]
    return {
        "without_ms": round(1e3 * median(all_s[0]), 2),
        "beside_ms": round(1e3 * median(all_s[1]), 2),
        "p95_ms": [round(1e3 * float(np.percentile(each, 95)), 2) for each in all_s],
        "ratio": round(float(ratio_of_medians(pairs[None])[0]), 3),
        "interval": [round(low, 3), round(high, 3)],
        "count": len(all_s[0]),
    }


def _spread(values: Sequence[float], count: int) -> list[float]:
    """So many of the values, at equal distances in their order."""
    ordered = sorted(values)
    return [ordered[round(index)] for index in np.linspace(0, len(ordered) - 1, count)]


def measure_latency(for_s: float) -> None:
    streams = random_streams()
    with learning_swarm(streams) as swarm:
        turns = asyncio.run(in_turns(swarm, for_s=for_s, streams=streams))
        found: dict[str, Any] = {
            "first draft after idle time": compared(turns, lambda one: [one.drafts[0].first_s]),
            "first draft at once": compared(turns, lambda one: [each.first_s for each in one.drafts[1:]]),
            "drafts after idle time": compared(turns, lambda one: one.drafts[0].later_s),
            "drafts at once": compared(turns, lambda one: [s for each in one.drafts[1:] for s in each.later_s]),
            "request after idle time": compared(turns, lambda one: one.seconds[:1]),
            "requests at once": compared(turns, lambda one: one.seconds[1:]),
        }
        for name, row in found.items():
            tell(what=name, **row)
        for way, some in turns.items():
            learned_s = sum(one.learning_s for one in some)
            tell(way=way, turns=len(some), learning_s=round(learned_s, 1))
        tell(rounds=len(swarm.events("learned")), switches=len(swarm.events("switched")))


async def probe_switch(swarm: LearningSwarm) -> dict[str, object]:
    """For how long the drafter says `Busy` to one who asks on and on, from the end of a round on."""
    until_s = time.monotonic() + PATIENCE_S
    async with swarm.client("verifier", BESIDE) as client:
        request = (await client.start("x = 1")).request
        async with drafting_for(client, swarm.nodes[BESIDE].peer_id) as channel:
            while not swarm.events("learned"):
                assert time.monotonic() < until_s, swarm.nodes[BESIDE].log.read_text()
                # Pings are answered.
                try:
                    async with asyncio.timeout(PROBE_S):
                        await channel.receive()
                except TimeoutError:
                    continue
            answers: list[tuple[float, bool, float]] = []
            number = 1
            while not swarm.events("switched") or answers[-1][1]:
                assert time.monotonic() < until_s, swarm.nodes[BESIDE].log.read_text()
                number += 1
                asked_s = time.perf_counter()
                channel.post(m.Start(number, request, ()))
                while not isinstance(answer := await channel.receive(), m.Started | m.Busy):
                    pass
                answers.append((asked_s, isinstance(answer, m.Busy), time.perf_counter() - asked_s))
                channel.post(m.Release(number))
                await asyncio.sleep(PROBE_S)
    busy = [asked_s for asked_s, is_busy, _ in answers if is_busy]
    return {
        "asked": len(answers),
        "busy_s": round(busy[-1] - busy[0], 2) if busy else 0.0,
        "longest_answer_ms": round(1e3 * max(took_s for *_, took_s in answers), 1),
    }


def measure_switch() -> None:
    streams = target_streams()
    with learning_swarm(streams) as swarm:
        try:
            tell(**asyncio.run(probe_switch(swarm)))
        except PeerLost as lost:
            tell(error=str(lost))
        tell(learned=swarm.events("learned"))


def tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["latency", "switch"], default="latency")
    parser.add_argument("--for-s", type=float, default=400.0, help="so long turns are taken")
    asked = parser.parse_args()
    if asked.what == "switch":
        measure_switch()
    else:
        measure_latency(asked.for_s)


if __name__ == "__main__":
    main()
