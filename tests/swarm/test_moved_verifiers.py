"""A text whose only verifier is lost waits for it, or for another one, and is the same."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import Member, SimulatedSwarm
from cosine_p2p.session.session import ASK_AGAIN_S, FOUND_AGAIN_S, OTHERS_SERVE_S
from cosine_p2p.transport.patience import JOIN_PAUSE_S
from cosine_protocol.errors import GenerationFailed, PeerLost
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
from cosine_protocol.request import Sampling
from tests.cosine_p2p.samples import identity_of
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine

TOKENS = 40
PROMPT = prompt_of(random.Random("moved"))
EXPECTED = plain_stream(PROMPT, Sampling(), tokens=TOKENS)
LOST_AT_S = 0.5
PATIENCE_S = 60.0
TOKENS_LEFT_S = 4.0
"""More than all of the text takes here, one token a pass."""
STILL_S = 15.0
LONG_TOKENS = 1000
Then = Callable[[SimulatedSwarm, Member], Coroutine[None, None, Member | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was yielded, how it ended, after how many seconds, and how often the verifier has failed."""

    token_ids: tuple[int, ...]
    error: GenerationFailed | None
    seconds: float
    failures: int


async def comes_back(swarm: SimulatedSwarm, lost: Member) -> Member:
    return await swarm.verifier(target_engine(), identity=lost.identity)


async def another_comes(swarm: SimulatedSwarm, lost: Member) -> Member:
    return await swarm.verifier(target_engine())


async def nobody_comes(swarm: SimulatedSwarm, lost: Member) -> None:
    return None


def after_a_loss(
    then: Then,
    *,
    away_s: float = 10.0,
    strategy: str = "cosine",
    times: int = 1,
    timeout_s: float = 600.0,
    patience_s: float = PATIENCE_S,
    lost_at_s: float = LOST_AT_S,
) -> Outcome:
    """The only verifier vanishes in the middle of a text; `then` happens so much later, `times` over."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:
            verifier: Member | None = await swarm.verifier(target_engine())
            await swarm.drafter(draft_engine(0.8))
            client = await swarm.client(strategy=strategy, patience_s=patience_s)

            async def lose() -> None:
                nonlocal verifier
                for _ in range(times):
                    await asyncio.sleep(lost_at_s)
                    assert verifier is not None
                    await verifier.kill()
                    await asyncio.sleep(away_s)
                    verifier = await then(swarm, verifier)

            if not lost_at_s:
                # The client has found it before.
                await client.find_verifiers()
            losing, ids, error = asyncio.ensure_future(lose()), list[int](), None
            try:
                async for chunk in client.stream(PROMPT, max_new_tokens=TOKENS, timeout_s=timeout_s):
                    ids += chunk.token_ids
            except GenerationFailed as failed:
                error = failed
            seconds = asyncio.get_running_loop().time()
            await losing
            await assert_freed(swarm)
            avoided = client._memory.failures.state(seconds)
            return Outcome(tuple(ids), error, seconds, avoided[0][1] if avoided else 0)

    return run_virtual(run())


@pytest.mark.parametrize("strategy", ["plain", "cosine"])
@pytest.mark.parametrize("then", [comes_back, another_comes])
def test_a_text_goes_on_soon_after_somebody_is_there_again(then: Then, strategy: str) -> None:
    done = after_a_loss(then, away_s=10.0, strategy=strategy)
    assert done.token_ids == EXPECTED
    assert done.seconds < LOST_AT_S + 10.0 + ASK_AGAIN_S + TOKENS_LEFT_S


def test_it_goes_on_after_each_of_several_losses() -> None:
    done = after_a_loss(comes_back, strategy="plain", away_s=6.0, times=2)
    assert (done.token_ids, done.error) == (EXPECTED, None)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_one_that_stands_still_is_waited_for_as_one_that_is_lost_each_time(times: int) -> None:
    """What the network carries no more looks like this, until the link to it is found dead."""

    async def run() -> tuple[tuple[int, ...], float]:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine())
            client = await swarm.client(strategy="plain", patience_s=PATIENCE_S)

            async def stand_still() -> None:
                for _ in range(times):
                    await asyncio.sleep(LOST_AT_S)
                    verifier.machine.stalled_until_s = asyncio.get_running_loop().time() + STILL_S
                    await asyncio.sleep(STILL_S + 4 * ASK_AGAIN_S)

            standing = asyncio.ensure_future(stand_still())
            done = await client.generate(PROMPT, max_new_tokens=LONG_TOKENS)
            seconds = asyncio.get_running_loop().time()
            await standing
            return done.token_ids, seconds

    token_ids, seconds = run_virtual(run())
    assert token_ids == plain_stream(PROMPT, Sampling(), tokens=LONG_TOKENS)
    assert seconds > times * STILL_S


def test_one_that_stands_still_for_good_is_given_up_in_time() -> None:
    async def run() -> float:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine())
            client = await swarm.client(strategy="plain", patience_s=PATIENCE_S)
            asyncio.get_running_loop().call_later(
                LOST_AT_S, setattr, verifier.machine, "stalled_until_s", 100 * PATIENCE_S
            )
            with pytest.raises(GenerationFailed, match="made no progress"):
                await client.generate(PROMPT, max_new_tokens=LONG_TOKENS)
            return asyncio.get_running_loop().time()

    assert PATIENCE_S <= run_virtual(run()) < 2 * PATIENCE_S


def test_where_nobody_comes_it_ends_with_who_was_lost_and_one_failure() -> None:
    done = after_a_loss(nobody_comes)
    assert 0 < len(done.token_ids) < TOKENS and done.token_ids == EXPECTED[: len(done.token_ids)]
    assert "was lost: the stream ended" in str(done.error)
    assert PATIENCE_S <= done.seconds - LOST_AT_S < PATIENCE_S + 2 * ASK_AGAIN_S
    assert done.failures == 1


def test_others_that_cannot_go_on_are_named_soon_and_not_waited_beside() -> None:
    """Asked anew, they serve the request at once."""

    async def run() -> tuple[str, float]:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine())
            client = await swarm.client(patience_s=PATIENCE_S)
            (record,) = await swarm.directory.find(Role.VERIFIER, ALL_TARGETS)
            other = replace(record, peer_id=identity_of(90).peer_id, numerics="bfloat16")
            await swarm.directory.announce(other, [other.target])
            asking = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=TOKENS))
            await asyncio.sleep(LOST_AT_S)
            await verifier.kill()
            with pytest.raises(GenerationFailed) as failed:
                await asking
            return str(failed.value), asyncio.get_running_loop().time() - LOST_AT_S

    error, seconds = run_virtual(run())
    assert "no other verifier with numerics scripted goes on with its text; there is bfloat16. Tried: " in error
    assert OTHERS_SERVE_S <= seconds < OTHERS_SERVE_S + 2 * ASK_AGAIN_S


def test_a_verifier_that_is_gone_before_the_text_begins_is_looked_for_as_long_as_a_move_takes() -> None:
    assert after_a_loss(comes_back, lost_at_s=0.0, away_s=5.0).token_ids == EXPECTED
    done = after_a_loss(nobody_comes, lost_at_s=0.0)
    assert done.error is not None and FOUND_AGAIN_S <= done.seconds < FOUND_AGAIN_S + 2 * ASK_AGAIN_S


def test_the_timeout_is_kept() -> None:
    done = after_a_loss(nobody_comes, timeout_s=20.0)
    assert done.error is not None and done.seconds <= 20.0


def test_without_patience_it_ends_at_once() -> None:
    done = after_a_loss(nobody_comes, patience_s=0.0)
    assert done.error is not None and done.seconds < LOST_AT_S + 2 * ASK_AGAIN_S


class CutOff(MemoryDirectory):
    """A directory in which nobody answers for a while, as when a p2pd is started again."""

    since_s = until_s = math.inf

    async def find(self, *args: Any, **options: Any) -> list[NodeRecord]:
        if self.since_s <= asyncio.get_running_loop().time() < self.until_s:
            raise PeerLost("us", "no node of the network answered a look-up")
        return await super().find(*args, **options)


@pytest.mark.parametrize(
    ("until_s", "patience_s", "knows_it"),
    [(5.0, PATIENCE_S, True), (5.0, 0.0, True), (math.inf, PATIENCE_S, True), (5.0, PATIENCE_S, False)],
)
def test_a_text_begins_as_soon_as_a_client_that_was_cut_off_is_back(
    until_s: float, patience_s: float, knows_it: bool
) -> None:
    """Or it ends once patience does; one that nobody has ever answered may be a stranger, and is told at once."""

    async def run() -> tuple[tuple[int, ...], float]:
        async with SimulatedSwarm() as swarm:
            swarm.directory = directory = CutOff()
            await swarm.verifier(target_engine())
            client = await swarm.client(strategy="plain", patience_s=patience_s)
            loop = asyncio.get_running_loop()
            if knows_it:
                await client.find_verifiers()
            began_s = loop.time()
            directory.since_s, directory.until_s = began_s, began_s + until_s
            ids: tuple[int, ...] = ()
            with suppress(PeerLost):
                ids = (await client.generate(PROMPT, max_new_tokens=TOKENS)).token_ids
            return ids, loop.time() - began_s

    waits_s = patience_s if knows_it else 0.0
    ids, seconds = run_virtual(run())
    assert ids == (EXPECTED if until_s < waits_s else ())
    assert seconds < min(until_s, waits_s) + JOIN_PAUSE_S + TOKENS_LEFT_S
