"""Peers that vanish, stall or refuse change the time, never the text."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing

import pytest

from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.engine.base import Engine, Row
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.runner import Pass
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.session.stall import STALL_S
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterStarted,
    Event,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    StrategyKind,
)
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.protocols import VERIFY
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import THOROUGH, quick_first

TOKENS = 40
LONG_TOKENS = 100
PROMPT = prompt_of(random.Random("faults"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)
STRATEGIES = ["plain", "cosine"]


class StandingRunner:
    """Returns from no pass between two times."""

    def __init__(self, engine: Engine, *, from_s: float, to_s: float) -> None:
        self._runner = InlineRunner(engine, VERIFY_CURVE)
        self._from_s, self._to_s = from_s, to_s

    async def forward(self, rows: Sequence[Row]) -> Pass:
        now_s = asyncio.get_running_loop().time()
        if self._from_s <= now_s < self._to_s:
            await asyncio.sleep(self._to_s - now_s)
        return await self._runner.forward(rows)

    def abandon(self) -> None:
        return

    def close(self) -> None:
        self._runner.close()


class StallingRunner:
    """Runs some passes and never returns from the next."""

    def __init__(self, engine: Engine, *, passes: int) -> None:
        self._runner = InlineRunner(engine, VERIFY_CURVE)
        self._left = passes

    async def forward(self, rows: Sequence[Row]) -> Pass:
        self._left -= 1
        if self._left < 0:
            await asyncio.Event().wait()
        return await self._runner.forward(rows)

    def abandon(self) -> None:
        return

    def close(self) -> None:
        self._runner.close()


async def later(delay_s: float, act: Callable[[], Coroutine[None, None, None]]) -> None:
    await asyncio.sleep(delay_s)
    await act()


async def streamed(client: AsyncClient, prompt: str = PROMPT, tokens: int = TOKENS) -> tuple[int, ...]:
    """Token ids as they were yielded, so that one yielded twice shows."""
    ids: list[int] = []
    async for chunk in client.stream(prompt, max_new_tokens=tokens):
        ids += chunk.token_ids
    return tuple(ids)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_drafters_vanish(strategy: str) -> None:
    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            drafters = [await swarm.drafter(draft_engine(0.9, n), domain=f"d{n}") for n in range(3)]
            client = await swarm.client(strategy=strategy)
            kills = [asyncio.ensure_future(later(0.2 + 0.1 * n, d.kill)) for n, d in enumerate(drafters)]
            generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
            await asyncio.gather(*kills)
            await assert_freed(swarm)
            return generation

    generation = run_virtual(run())
    assert generation.token_ids == EXPECTED
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("after_s", quick_first([0.2, 0.0, 0.03, 0.5]))
def test_a_second_verifier_continues_the_same_stream(strategy: str, after_s: float) -> None:
    async def run() -> tuple[int, ...]:
        async with SimulatedSwarm() as swarm:
            first = await swarm.verifier(target_engine())
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            kill = asyncio.ensure_future(later(after_s, first.kill))
            ids = await streamed(client)
            await kill
            await assert_freed(swarm)
            return ids

    assert run_virtual(run()) == EXPECTED


def test_both_verifiers_are_named_with_what_they_committed() -> None:
    async def run() -> tuple[Generation, list[str]]:
        async with SimulatedSwarm() as swarm:
            first = await swarm.verifier(target_engine())
            second = await swarm.verifier(target_engine(), curve=CostCurve(((1, 0.2),)))
            client = await swarm.client(strategy="plain")
            order = [first.identity.peer_id, second.identity.peer_id]
            kill = asyncio.ensure_future(later(0.5, first.kill))
            generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
            await kill
            return generation, order

    generation, order = run_virtual(run())
    assert [report.peer_id for report in generation.verifiers] == order
    assert sum(report.tokens for report in generation.verifiers) == TOKENS == generation.tokens
    assert all(report.tokens for report in generation.verifiers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_only_verifier_vanishes(strategy: str) -> None:
    async def run() -> float:
        async with SimulatedSwarm() as swarm:
            only = await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            kill = asyncio.ensure_future(later(0.3, only.kill))
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(GenerationFailed, match=only.identity.peer_id):
                await client.generate(PROMPT, max_new_tokens=TOKENS)
            await kill
            return asyncio.get_running_loop().time() - began_s

    assert run_virtual(run()) < 10


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("passes", [0, 5])
def test_a_verifier_that_stalls_is_left(strategy: str, passes: int) -> None:
    async def run() -> float:
        async with SimulatedSwarm() as swarm:
            engine = target_engine()
            only = await swarm.verifier(engine, runner=StallingRunner(engine, passes=passes))
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(GenerationFailed, match=f"{only.identity.peer_id} was lost: it made no progress"):
                await client.generate(PROMPT, max_new_tokens=TOKENS)
            return asyncio.get_running_loop().time() - began_s

    assert run_virtual(run()) < 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_verifier_takes_over_from_one_that_stalls(strategy: str) -> None:
    async def run() -> tuple[tuple[int, ...], float]:
        async with SimulatedSwarm() as swarm:
            for _ in range(2):
                engine = target_engine()
                await swarm.verifier(engine, runner=StallingRunner(engine, passes=8))
            await swarm.verifier(target_engine(), curve=CostCurve(((1, 0.2), (32, 0.3))))
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            ids = await streamed(client)
            return ids, asyncio.get_running_loop().time()

    ids, seconds = run_virtual(run())
    assert ids == EXPECTED
    assert seconds < 25


@pytest.mark.parametrize(
    ("strategy", "from_s"),
    [("plain", 0.5), pytest.param("plain", 0.0, marks=THOROUGH), pytest.param("cosine", 0.5, marks=THOROUGH)],
)
def test_a_verifier_that_stood_still_goes_on_where_the_other_one_stands_still_then(
    strategy: str, from_s: float
) -> None:
    """Whichever is asked first, before it has opened the request or after; heartbeats come all the time."""

    async def run(is_first: bool) -> tuple[int, ...]:
        async with SimulatedSwarm() as swarm:
            for is_early in (is_first, not is_first):
                at_s = from_s if is_early else from_s + STALL_S + 1.5
                engine = target_engine()
                runner = StandingRunner(engine, from_s=at_s, to_s=at_s + STALL_S + 1.5)
                await swarm.verifier(engine, runner=runner)
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            ids = await streamed(client, tokens=LONG_TOKENS)
            await assert_freed(swarm)
            return ids

    expected = plain_stream(PROMPT, Sampling(), tokens=LONG_TOKENS)
    assert run_virtual(run(True)) == run_virtual(run(False)) == expected


def test_a_sole_verifier_whose_daemon_dies_before_it_has_opened_the_request_is_asked_again() -> None:
    async def run() -> tuple[int, ...]:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine())
            ended = 0

            async def handle(stream: Stream) -> None:
                nonlocal ended
                if ended:
                    return await verifier.service.handle(stream)
                async with Channel(stream, VERIFY) as channel:
                    ended += isinstance(await channel.receive(), m.Open)

            await verifier.transport.serve(VERIFY, handle)
            client = await swarm.client(strategy="plain")
            ids = await streamed(client)
            assert ended
            return ids

    assert run_virtual(run()) == EXPECTED


def test_a_long_prefill_after_a_failover_is_no_stall() -> None:
    """A prefill that takes longer than the patience with a stalled verifier, which its prompt explains."""
    curve = CostCurve(((1, 0.05), (100, 4.0)))
    prompt = prompt_of(random.Random("long"), tokens=160)

    async def run() -> tuple[int, ...]:
        async with SimulatedSwarm() as swarm:
            members = [await swarm.verifier(target_engine(), curve=curve) for _ in range(2)]
            first = min(members, key=lambda member: member.identity.peer_id)
            client = await swarm.client(strategy="plain")
            kill = asyncio.ensure_future(later(6.8, first.kill))
            ids = await streamed(client, prompt, 20)
            await kill
            return ids

    assert run_virtual(run()) == plain_stream(prompt, Sampling(), tokens=20)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_that_stops_reading_frees_the_verifier(strategy: str) -> None:
    async def run() -> int:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            taken = 0
            async with aclosing(client.stream(PROMPT, max_new_tokens=1000)) as chunks:
                async for chunk in chunks:
                    taken += len(chunk.token_ids)
                    if taken > 5:
                        break
            await assert_freed(swarm)
            return taken

    assert run_virtual(run()) > 5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_that_vanishes_frees_everything(strategy: str) -> None:
    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy)
            known = set(swarm.network.transports)
            members = {member.identity.peer_id for member in swarm.members}
            running = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=1000))
            await asyncio.sleep(0.7)
            assert not running.done()
            for peer_id in known - members:
                swarm.network.transports[peer_id].vanish()
            await assert_freed(swarm)
            with pytest.raises(GenerationFailed):
                await running

    run_virtual(run())


def test_a_client_that_is_cancelled_frees_everything() -> None:
    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client()
            running = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=1000))
            await asyncio.sleep(0.5)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await assert_freed(swarm)

    run_virtual(run())


def test_an_overloaded_verifier_sends_requests_to_the_next() -> None:
    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            for _ in range(2):
                await swarm.verifier(target_engine(), max_requests=1)
            client = await swarm.client(strategy="plain")
            return await asyncio.gather(*(client.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(2)))

    generations = run_virtual(run())
    assert [generation.token_ids for generation in generations] == [EXPECTED, EXPECTED]
    assert len({generation.verifiers[0].peer_id for generation in generations}) == 2


def test_with_every_place_taken_a_request_waits_or_says_so_where_it_has_no_time() -> None:
    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            only = await swarm.verifier(target_engine(), max_requests=1)
            client = await swarm.client(strategy="plain")
            hasty = await swarm.client(strategy="plain", timeout_s=1.0)
            first = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=TOKENS))
            await asyncio.sleep(0.3)
            with pytest.raises(GenerationFailed, match=f"{only.identity.peer_id} had no place for the request"):
                await hasty.generate(PROMPT, max_new_tokens=TOKENS)
            assert (await client.generate(PROMPT, max_new_tokens=TOKENS)).token_ids == EXPECTED
            assert (await first).token_ids == EXPECTED
            await assert_freed(swarm)

    run_virtual(run())


@pytest.mark.parametrize("clients", quick_first([4, 1]))
def test_many_requests_at_once(clients: int) -> None:
    prompts = [prompt_of(random.Random(f"many {n}")) for n in range(16)]

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            for number in range(2):
                await swarm.drafter(draft_engine(0.8, number), domain=f"d{number}")
            several = [await swarm.client() for _ in range(clients)]
            runs = [several[n % clients].generate(p, max_new_tokens=16) for n, p in enumerate(prompts)]
            generations = await asyncio.gather(*runs)
            await assert_freed(swarm)
            return generations

    for prompt, generation in zip(prompts, run_virtual(run()), strict=True):
        assert generation.token_ids == plain_stream(prompt, Sampling(), tokens=16), prompt


def test_a_generation_past_its_timeout_ends_with_a_reason() -> None:
    async def run() -> float:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            client = await swarm.client(strategy="plain", timeout_s=1.0)
            with pytest.raises(GenerationFailed, match="timeout"):
                await client.generate(PROMPT, max_new_tokens=1000)
            ended_s = asyncio.get_running_loop().time()
            await assert_freed(swarm)
            return ended_s

    assert run_virtual(run()) < 2


class RecallsOften:
    """Decodes plainly and releases and recalls its drafter again and again."""

    def __init__(self, root: bytes) -> None:
        self.starts = 0
        self.follows = False

    def on(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case DrafterStarted():
                self.starts += 1
                self.follows = True
                return []
            case Committed() if self.follows:
                self.follows = False
                advance = SendAdvance(1, event.position, event.tokens)
                return [advance, ReleaseDrafter(1, "for now"), RecallDrafter(1, "at once")]
            case _:
                return []


def test_a_drafter_follows_again_from_the_whole_stream_as_often_as_it_is_recalled() -> None:
    strategies: list[RecallsOften] = []

    def make(root: bytes) -> RecallsOften:
        strategies.append(RecallsOften(root))
        return strategies[-1]

    kind = StrategyKind(name="recalls", make=make)

    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategies={kind.name: kind}, strategy=kind.name)
            return await client.generate(PROMPT, max_new_tokens=TOKENS)

    assert run_virtual(run()).token_ids == EXPECTED
    assert strategies[0].starts > 15
