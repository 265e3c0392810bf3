"""Tests of texts that continue after their verifier was lost."""

import asyncio
import math
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation import workload
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.verifier.service import VerifierService
from cosine_p2p.session.session import ASK_AGAIN_S, FOUND_AGAIN_S, OTHERS_SERVE_S
from cosine_p2p.session.warm_spare import EVERY_TOKENS, LEAST_TOKENS
from cosine_p2p.transport.patience import JOIN_PAUSE_S
from cosine_protocol.errors import GenerationFailed, PeerLost
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
from cosine_protocol.request import Sampling
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_virtual_time
from tests.swarm.reference import (
    VOCAB_TOKENS,
    assert_freed,
    draft_engine,
    greedy_text,
    in_a_swarm,
    plain_stream,
    prompt_of,
    target_engine,
)
from tests.thoroughness import quick_first

TOKENS = 40
PROMPT, EXPECTED = greedy_text("moved", TOKENS)
LOST_AT_S = 0.5
PATIENCE_S = 60.0
TOKENS_LEFT_S = 4.0
"""More than the time of the whole text."""
STILL_S = 15.0


class Then(Enum):
    """The verifier that joins after the loss."""

    SAME = auto()
    ANOTHER = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The yielded tokens, the error, the seconds, and the number of the verifier's failures."""

    token_ids: tuple[int, ...]
    error: GenerationFailed | None
    seconds: float
    failures: int


@in_virtual_time
async def after_a_loss(
    then: Then,
    *,
    away_s: float = 10.0,
    strategy: str = "cosine",
    timeout_s: float = 600.0,
    patience_s: float = PATIENCE_S,
    lost_at_s: float = LOST_AT_S,
) -> Outcome:
    """Generate a text whose only verifier vanishes; `away_s` later `then` joins."""
    async with SimulatedSwarm() as swarm:
        verifier = await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(0.8))
        client = await swarm.client(strategy=strategy, patience_s=patience_s)

        async def lose() -> None:
            await asyncio.sleep(lost_at_s)
            await verifier.kill()
            await asyncio.sleep(away_s)
            identity = verifier.identity if then is Then.SAME else None
            if then is not Then.NONE:
                await swarm.verifier(target_engine(), identity=identity)

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
        failures = client._memory.failures.counts.aged(seconds)
        return Outcome(tuple(ids), error, seconds, failures[0][1] if failures else 0)


@pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))
@pytest.mark.parametrize("then", [Then.SAME, Then.ANOTHER])
def test_a_text_goes_on_soon_after_somebody_is_there_again(then: Then, strategy: str) -> None:
    done = after_a_loss(then, away_s=10.0, strategy=strategy)
    assert done.token_ids == EXPECTED
    assert done.seconds < LOST_AT_S + 10.0 + ASK_AGAIN_S + TOKENS_LEFT_S


@pytest.mark.parametrize("times", quick_first([2, 1, 3]))
@in_a_swarm
async def test_a_stalled_verifier_is_waited_for_each_time(swarm: SimulatedSwarm, times: int) -> None:
    verifier = await swarm.verifier(target_engine())
    client = await swarm.client(strategy="plain", patience_s=PATIENCE_S)

    async def stand_still() -> None:
        for _ in range(times):
            await asyncio.sleep(LOST_AT_S)
            verifier.machine.stalled_until_s = asyncio.get_running_loop().time() + STILL_S
            await asyncio.sleep(STILL_S + 4 * ASK_AGAIN_S)

    standing = asyncio.ensure_future(stand_still())
    tokens = 300 * times
    done = await client.generate(PROMPT, max_new_tokens=tokens)
    assert asyncio.get_running_loop().time() > times * STILL_S
    await standing
    assert done.token_ids == plain_stream(PROMPT, Sampling(), tokens=tokens)


def test_where_nobody_comes_it_ends_with_who_was_lost_and_one_failure() -> None:
    done = after_a_loss(Then.NONE)
    assert 0 < len(done.token_ids) < TOKENS and done.token_ids == EXPECTED[: len(done.token_ids)]
    assert "was lost: the stream ended" in str(done.error)
    assert PATIENCE_S <= done.seconds - LOST_AT_S < PATIENCE_S + 2 * ASK_AGAIN_S
    assert done.failures == 1


@in_a_swarm
async def test_others_that_cannot_continue_are_named_soon_and_not_waited_beside(swarm: SimulatedSwarm) -> None:
    verifier = await swarm.verifier(target_engine())
    client = await swarm.client(patience_s=PATIENCE_S)
    (record,) = await swarm.directory.find(Role.VERIFIER, ALL_TARGETS)
    other = replace(record, peer_id=identity_of(90).peer_id, numerics="bfloat16")
    await swarm.directory.announce(other, [other.target])
    asking = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=TOKENS))
    await asyncio.sleep(LOST_AT_S)
    await verifier.kill()
    sentence = "no other verifier with numerics scripted continues its text; available: bfloat16. Tried: "
    with pytest.raises(GenerationFailed, match=sentence):
        await asking
    seconds = asyncio.get_running_loop().time() - LOST_AT_S
    assert OTHERS_SERVE_S <= seconds < OTHERS_SERVE_S + 2 * ASK_AGAIN_S


def test_a_verifier_that_is_gone_before_the_text_begins_is_looked_for_as_long_as_a_move_takes() -> None:
    assert after_a_loss(Then.SAME, lost_at_s=0.0, away_s=5.0).token_ids == EXPECTED
    done = after_a_loss(Then.NONE, lost_at_s=0.0)
    assert done.error is not None and FOUND_AGAIN_S <= done.seconds < FOUND_AGAIN_S + 2 * ASK_AGAIN_S


def test_the_timeout_is_kept_and_without_patience_it_ends_at_once() -> None:
    done = after_a_loss(Then.NONE, timeout_s=20.0)
    assert done.error is not None and done.seconds <= 20.0
    done = after_a_loss(Then.NONE, patience_s=0.0)
    assert done.error is not None and done.seconds < LOST_AT_S + 2 * ASK_AGAIN_S


class Slow(MemoryDirectory):
    """A directory whose first look-up takes long after a loss, and still shows the members of before."""

    look_s = 0.0
    shown_first: list[NodeRecord] | None = None

    async def find(self, *args: Any, **options: Any) -> list[NodeRecord]:
        shown, self.shown_first = self.shown_first, None
        await asyncio.sleep(self.look_s)
        return await super().find(*args, **options) if shown is None else shown


@pytest.mark.parametrize(("look_s", "patience_s"), [(0.0, 0.0), (0.0, PATIENCE_S), (OTHERS_SERVE_S, PATIENCE_S)])
@in_a_swarm
async def test_an_earlier_newcomer_is_found(swarm: SimulatedSwarm, look_s: float, patience_s: float) -> None:
    swarm.directory = directory = Slow()
    verifier = await swarm.verifier(target_engine())
    (record,) = await directory.find(Role.VERIFIER, ALL_TARGETS)
    other = replace(record, peer_id=identity_of(90).peer_id, numerics="bfloat16")
    await directory.announce(other, [other.target])
    client = await swarm.client(strategy="plain", patience_s=patience_s)
    tokens = 300
    asking = asyncio.ensure_future(client.generate(PROMPT, max_new_tokens=tokens))
    await asyncio.sleep(LOST_AT_S)
    before = await directory.find(Role.VERIFIER, record.target)
    await swarm.verifier(target_engine())
    await asyncio.sleep(8.0)
    directory.look_s, directory.shown_first = look_s, before if look_s else None
    await verifier.kill()
    assert (await asking).token_ids == plain_stream(PROMPT, Sampling(), tokens=tokens)


class CutOff(MemoryDirectory):
    """A directory that does not answer for some time, as while a p2pd restarts."""

    since_s = until_s = math.inf

    async def find(self, *args: Any, **options: Any) -> list[NodeRecord]:
        if self.since_s <= asyncio.get_running_loop().time() < self.until_s:
            raise PeerLost("us", "no node of the network answered a look-up")
        return await super().find(*args, **options)


@pytest.mark.parametrize(
    ("until_s", "patience_s", "knows_it"),
    [(5.0, PATIENCE_S, True), (5.0, 0.0, True), (math.inf, PATIENCE_S, True), (5.0, PATIENCE_S, False)],
)
@in_a_swarm
async def test_a_text_begins_once_a_client_is_back_online(
    swarm: SimulatedSwarm, until_s: float, patience_s: float, knows_it: bool
) -> None:
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
    waits_s = patience_s if knows_it else 0.0
    assert ids == (EXPECTED if until_s < waits_s else ())
    assert loop.time() - began_s < min(until_s, waits_s) + JOIN_PAUSE_S + TOKENS_LEFT_S


# A second verifier that is kept warm continues a long request at once where the first one dies.

LONG_TOKENS = 200
DIES_AFTER = 150
SETTLE_S = 3.0
"""Longer than a verifier takes for an unread token."""


async def failed_over(
    swarm: SimulatedSwarm, *, prompt_tokens: int = 2000, spares_die: int = 0, **options: Any
) -> tuple[float, int]:
    """Return the seconds until the next verifier continues a text, and the number of requests that it opened.

    The first of three verifiers dies, and `spares_die` of the others before it. The text is checked.
    """
    prompt = prompt_of(random.Random("warm"), prompt_tokens)
    alone, *served = (ScriptedEngine(vocab_tokens=VOCAB_TOKENS, context_tokens=8192) for _ in range(4))
    verifiers = [await swarm.verifier(engine) for engine in served]
    client = await swarm.client(timeout_s=300.0, **options)
    started = await client.start(prompt, max_new_tokens=LONG_TOKENS)
    by_peer_id = {member.identity.peer_id: member for member in verifiers}
    first, *spares = (by_peer_id[peer_id] for peer_id in started.verifiers)
    loop, died_s, resumed_s, tokens = asyncio.get_running_loop(), 0.0, 0.0, 0
    for spare in spares[:spares_die]:
        await spare.kill()
    async for chunk in started.chunks():
        tokens += len(chunk.token_ids)
        if died_s and not resumed_s:
            resumed_s = loop.time()
        if tokens >= DIES_AFTER and not died_s:
            await first.kill()
            died_s = loop.time()
    await asyncio.sleep(SETTLE_S)
    assert all(member.service.requests == 0 for member in spares if not member.is_killed)
    prompt_ids = LetterCodec().encode(prompt)
    assert started.result().token_ids == workload.plain_stream(alone, prompt_ids, Sampling(), tokens=LONG_TOKENS)
    service = spares[spares_die].service
    assert isinstance(service, VerifierService)
    return resumed_s - died_s, service.counts.opened


@pytest.mark.parametrize(("is_warm", "seconds"), [(False, 5.0), (True, 0.2)])
@in_a_swarm
async def test_a_warm_spare_continues_at_once(swarm: SimulatedSwarm, is_warm: bool, seconds: float) -> None:
    resume_s, opened = await failed_over(swarm, warm_spare=is_warm)
    assert resume_s == pytest.approx(seconds, abs=0.1)
    # The first warming, those on the way, and the request itself.
    assert 1 < opened <= 2 + DIES_AFTER // EVERY_TOKENS if is_warm else opened == 1


@in_a_swarm
async def test_where_the_spare_dies_the_next_one_is_kept_warm(swarm: SimulatedSwarm) -> None:
    assert (await failed_over(swarm, warm_spare=True, spares_die=1))[0] < 1.0


@in_a_swarm
async def test_a_short_prompt_keeps_nobody_warm(swarm: SimulatedSwarm) -> None:
    assert (await failed_over(swarm, prompt_tokens=LEAST_TOKENS - LONG_TOKENS - 1, warm_spare=True))[1] == 1
