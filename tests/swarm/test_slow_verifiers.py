"""Tests of verifiers that stall, are slow, or do not exist."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm, numbered_identity
from cosine_p2p.request.results import Generation
from cosine_p2p.session.stall import COUNTING, LONE_S, SLOW_AFTER_S, STALL_S
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, StepCounts, serve_channel
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.records import Role
from cosine_protocol.verify import VERIFY, Commit, Open, Opened, PassStats
from tests.scenes import in_virtual_time
from tests.swarm.reference import greedy_text, in_a_swarm, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 40
PROMPT, EXPECTED = greedy_text("slow", TOKENS)
HOUR_US: Final = 3_600_000_000
TRICKLE_S: Final = 3.5
LIAR: Final = numbered_identity(9100)
STATS: Final = PassStats(0, 0, 1)


@dataclass(slots=True)
class SlowVerifier:
    """A verifier that commits at most `commits` correct tokens, one every `pause_s`; `counts`: reports passes."""

    pause_s: float
    commits: int = TOKENS
    counts: bool = False
    pass_us: int = 1
    steps: StepCounts = field(default_factory=StepCounts)
    asked: int = 0

    async def handle(self, stream: Stream) -> None:
        tasks: list[asyncio.Task[None]] = []

        def receive(channel: Channel, message: Message) -> None:
            if isinstance(message, Open):
                self.asked += 1
                channel.post(Opened(message.number, self.pass_us))
                tasks.append(asyncio.ensure_future(self._commit(channel, message)))

        tasks.append(asyncio.ensure_future(self._count()))
        await serve_channel(stream, VERIFY, receive, progress=self.steps)
        for task in tasks:
            task.cancel()

    async def _count(self) -> None:
        while self.counts:
            self.steps.steps += 1
            self.steps.prefill_tokens += 7
            await asyncio.sleep(0.1)

    async def _commit(self, channel: Channel, opened: Open) -> None:
        digest = roll_digest(request_digest(opened.request), opened.committed)
        first = len(opened.committed)
        for position in range(first, min(first + self.commits, TOKENS)):
            await asyncio.sleep(self.pause_s)
            tokens = EXPECTED[position : position + 1]
            digest = roll_digest(digest, tokens)
            channel.post(Commit(opened.number, position, tokens, digest, bytes(1), STATS))


async def announce(swarm: SimulatedSwarm, liar: SlowVerifier | None, **record: Any) -> None:
    """Announce the record of the fastest verifier, which does not exist unless `liar` is given."""
    true = (await swarm.directory.find(Role.VERIFIER, TARGET))[0]
    if liar is not None:
        await swarm.join(LIAR).serve(VERIFY, liar.handle)
    lies: dict[str, Any] = {"peer_id": LIAR.peer_id, "pass_us": 1, "load_requests": 0, "capacity_requests": 1000}
    await swarm.directory.announce(replace(true, **(lies | record)), [TARGET])


@in_virtual_time
async def generated(
    liar: SlowVerifier | None, *, requests: int = 1, honest: int = 1, strategy: str = "plain", **record: Any
) -> list[Generation]:
    async with SimulatedSwarm() as swarm:
        for _ in range(honest):
            await swarm.verifier(target_engine())
        if liar is not None:
            await announce(swarm, liar, **record)
        client = await swarm.client(strategy=strategy, timeout_s=36_000.0)
        return [await client.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(requests)]


def first_asked(liar: SlowVerifier, **options: Any) -> Generation:
    """Return a generation whose client asked the liar first, as half of new clients do."""
    for honest in range(1, 6):
        generation = generated(liar, honest=honest, **options)[0]
        if liar.asked:
            return generation
    raise AssertionError("no client asked the liar")


ALONE: Final = generated(None)[0]
LIES: Final = {
    "an hour a pass, and nothing committed": (SlowVerifier(1e9, pass_us=HOUR_US), STALL_S),
    "an hour a pass, and nothing after two tokens": (SlowVerifier(0.1, commits=2, pass_us=HOUR_US), STALL_S),
    "counts, and nothing committed": (SlowVerifier(1e9, counts=True), COUNTING * STALL_S),
    "counts, and nothing after two tokens": (SlowVerifier(0.1, commits=2, counts=True), SLOW_AFTER_S),
    "a token now and then": (SlowVerifier(TRICKLE_S), SLOW_AFTER_S + 2 * TRICKLE_S),
    "a token now and then, and counts": (SlowVerifier(TRICKLE_S, counts=True), SLOW_AFTER_S + 2 * TRICKLE_S),
}


@pytest.mark.parametrize(("liar", "most_s"), LIES.values(), ids=LIES)
@pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))
def test_a_lying_verifier_costs_seconds(liar: SlowVerifier, most_s: float, strategy: str) -> None:
    generation = first_asked(replace(liar, steps=StepCounts()), strategy=strategy)
    assert generation.token_ids == EXPECTED
    assert generation.seconds <= ALONE.seconds + most_s + 1.0


@pytest.mark.parametrize("lie", quick_first(LIES, 2))
def test_it_is_seldom_asked_again(lie: str) -> None:
    liar = replace(LIES[lie][0], steps=StepCounts())
    later = generated(liar, requests=8)
    assert all(generation.token_ids == EXPECTED for generation in later)
    assert liar.asked <= 2
    assert sum(generation.seconds > 1.1 * ALONE.seconds for generation in later) <= 2


@in_a_swarm
async def test_the_sole_verifier_is_given_up_within_minutes_and_not_at_the_timeout(swarm: SimulatedSwarm) -> None:
    killed = await swarm.verifier(target_engine())
    await announce(swarm, SlowVerifier(1e9, counts=True, pass_us=HOUR_US))
    await killed.kill()
    client = await swarm.client(strategy="plain", timeout_s=36_000.0)
    with pytest.raises(GenerationFailed, match="committed nothing"):
        await client.generate(PROMPT, max_new_tokens=TOKENS)
    assert asyncio.get_running_loop().time() <= 3 * COUNTING * LONE_S


@in_a_swarm
async def test_an_honest_slow_verifier_is_asked_again_where_nobody_is_better(swarm: SimulatedSwarm) -> None:
    honest = await swarm.verifier(target_engine())
    client = await swarm.client(strategy="plain", timeout_s=3600.0)
    quick = await client.generate(PROMPT, max_new_tokens=TOKENS)
    honest.machine.slowness = 40.0
    await announce(swarm, None, pass_us=HOUR_US)
    slow = await client.generate(PROMPT, max_new_tokens=TOKENS)
    assert quick.token_ids == slow.token_ids == EXPECTED
    assert slow.seconds < 40.0 * VERIFY_CURVE.seconds(1) * (TOKENS + 30)


DEAD: Final[dict[str, dict[str, Any]]] = {
    "numerics of its own": {"numerics": "float16"},
    "no room for a prompt": {"context_tokens": 1},
    "room for one token": {"context_tokens": 6},
    "an endless context": {"context_tokens": 1 << 30},
    "nothing else": {},
}


@pytest.mark.parametrize("lie", quick_first(DEAD.values(), 3), ids=DEAD)
@in_a_swarm
async def test_a_dead_record_costs_its_own_place_once(swarm: SimulatedSwarm, lie: dict[str, Any]) -> None:
    await swarm.verifier(target_engine())
    await announce(swarm, None, **lie)
    client = await swarm.client(strategy="plain", max_new_tokens=TOKENS)
    first, *later = [await client.generate(PROMPT) for _ in range(3)]
    assert first.token_ids == EXPECTED
    for generation in later:
        assert generation.token_ids == EXPECTED
        assert generation.seconds == pytest.approx(ALONE.seconds, rel=0.05)
        assert [verifier.peer_id for verifier in generation.swarm.verifiers] != [LIAR.peer_id]
