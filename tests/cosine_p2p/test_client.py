"""Tests of the client in an in-memory swarm."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.client import AsyncClient, Lifetime
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import GenerationFailed, GenerationTimedOut, PeerLost, UsageError
from cosine_protocol.records import ALL_TARGETS, GenerationDefaults, NodeRecord, Role
from cosine_protocol.request import Sampling
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

TOKENS = 24
LOOK_UP_S = 0.3
PROMPT = prompt_of(random.Random("client"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)
TEXT = LetterCodec().decode(EXPECTED)


@in_virtual_time
async def with_client(
    use: Callable[[AsyncClient], Awaitable[Any]],
    *,
    published: GenerationDefaults | None = None,
    **options: Any,
) -> Any:
    async with SimulatedSwarm(facts=facts_of(generation_defaults=published)) as swarm:
        await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(0.9))
        return await use(await swarm.client(**options))


def generated(prompt: str = PROMPT, *, with_options: dict[str, Any] | None = None, **options: Any) -> Generation:
    result = with_client(lambda client: client.generate(prompt, **options), **(with_options or {}))
    assert isinstance(result, Generation)
    return result


def test_a_generation_accounts_for_itself() -> None:
    generation = generated(max_new_tokens=TOKENS, seed=3)
    assert (generation.text, generation.token_ids, generation.usage.completion_tokens) == (TEXT, EXPECTED, TOKENS)
    assert (generation.finish_reason, generation.swarm.strategy, generation.seed) == ("length", "cosine", 3)
    assert 0 < generation.time_to_first_token_s < generation.seconds
    assert generation.usage.completion_tokens == generation.swarm.rounds + generation.swarm.accepted
    assert generation.swarm.accepted == sum(report.accepted for report in generation.swarm.drafters) > 0
    assert generation.swarm.drafted == sum(report.drafted for report in generation.swarm.drafters)
    assert [report.rtt_ms for report in generation.swarm.verifiers] == [pytest.approx(10.0)]
    assert generation.swarm.bytes_sent > 0 < generation.swarm.bytes_received


def test_the_origins_of_a_text_add_up_to_it_also_where_a_stop_string_cuts_a_commit() -> None:
    whole = generated(max_new_tokens=TOKENS)
    assert {origin.name for origin in whole.swarm.origins} >= {"code", "target alone"}
    for start in (7, 13):
        stop = TEXT[start : start + 3]
        cut = generated(max_new_tokens=TOKENS, stop=stop)
        assert (cut.text, cut.finish_reason) == (TEXT[: TEXT.index(stop)], "stop")
        assert cut.token_ids == EXPECTED[: TEXT.index(stop) + 3]
        assert sum(origin.tokens for origin in cut.swarm.origins) == cut.usage.completion_tokens < TOKENS


def test_what_holds_for_a_client_may_be_asked_of_one_call() -> None:
    for options in ({"verifier": "nobody"}, {"trust": ["nobody"]}, {"dtype": "int4"}):
        with pytest.raises(GenerationFailed, match=r"available: 12D3\w+ \(scripted\)"):
            generated(**options)
        with pytest.raises(GenerationFailed, match=r"available: 12D3\w+ \(scripted\)"):
            generated(with_options=options)
    generation = generated(max_new_tokens=TOKENS, max_drafters=0)
    assert (generation.swarm.drafters, generation.token_ids) == ((), EXPECTED)
    with pytest.raises(GenerationTimedOut):
        generated(max_new_tokens=TOKENS, timeout_s=0.2)


def test_a_client_without_a_target_takes_the_only_one_that_the_network_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name that a peer chose is none of a file here.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()

    async def run(*others: str) -> tuple[str, Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            (verifier,) = await swarm.directory.find(Role.VERIFIER, ALL_TARGETS)
            for number, name in enumerate(others, 90):
                other = replace(verifier, peer_id=identity_of(number).peer_id, target=name, target_digest=bytes(32))
                await swarm.directory.announce(other, [name])
            client = await swarm.client(target=None)
            return client.target, await client.generate(PROMPT, max_new_tokens=TOKENS)

    named, generation = run_virtual(run("folder"))
    assert (named, generation.text) == ("zoo:target", TEXT)
    with pytest.raises(UsageError, match=r"serves several targets, other \(.*\), zoo:target \(.*\): choose"):
        run_virtual(run("other"))


class Notes:
    def __init__(self) -> None:
        self.done: list[Generation] = []
        self.abandoned: list[Generation] = []

    def observe(self, done: Generation) -> None:
        self.done.append(done)

    def observe_abandoned(self, part: Generation) -> None:
        self.abandoned.append(part)


def test_an_observer_is_told_of_every_generation_once() -> None:
    notes = Notes()

    async def use(client: AsyncClient) -> Generation:
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS, stop=TEXT[7:10])
        async with aclosing(client.stream(PROMPT, max_new_tokens=TOKENS)) as chunks:
            async for _ in chunks:
                break
        return generation

    generation = with_client(use, observer=notes)
    assert notes.done == [generation]
    assert [0 < part.usage.completion_tokens < TOKENS for part in notes.abandoned] == [True]


class Far(MemoryDirectory):
    """A slow directory, which may not find drafters."""

    def __init__(self, *, shows_drafters: bool) -> None:
        super().__init__()
        self._shows_drafters = shows_drafters

    async def find(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        await asyncio.sleep(LOOK_UP_S)
        if role is Role.DRAFTER and not self._shows_drafters:
            raise PeerLost("the directory", "no node answered a look-up")
        return await super().find(role, target)


@pytest.mark.parametrize("shows_drafters", [True, False])
@in_virtual_time
async def test_nodes_are_looked_up_at_once_and_missing_drafters_stop_nobody(shows_drafters: bool) -> None:
    directory = Far(shows_drafters=shows_drafters)
    async with SimulatedSwarm(directory_of=lambda _: directory) as swarm:
        await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(0.9))
        client = await swarm.client()
        began_s = asyncio.get_running_loop().time()
        await client.start(PROMPT)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(LOOK_UP_S)


async def begun() -> Lifetime:
    lifetime = Lifetime()
    lifetime.begin()
    lifetime.begin()
    return lifetime


def test_a_client_lives_once_and_on_one_event_loop() -> None:
    async def again(lifetime: Lifetime) -> None:
        with pytest.raises(UsageError, match="joined on another event loop; make a client on this one"):
            lifetime.begin()

    lifetime = asyncio.run(begun())
    asyncio.run(again(lifetime))
    lifetime.check()
    lifetime.end()
    with pytest.raises(UsageError, match="is closed; make another one"):
        lifetime.check()
