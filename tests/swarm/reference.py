"""Reference texts, and swarms that tests share."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from cosine_engine.base import Engine, Row
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation import workload
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedHome, SimulatedMember, SimulatedSwarm
from cosine_node.passes.runner import Pass
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.session.run import Run
from cosine_protocol.identity import Identity
from cosine_protocol.request import Sampling
from tests.scenes import as_test, in_virtual_time

VOCAB_TOKENS = 32
LOST_AFTER_TOKENS = 3


def target_engine() -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS)


def draft_engine(fidelity: float, seed: int = 0) -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS, fidelity=fidelity, drafter_seed=seed)


def draft_engines(*fidelities: float) -> list[ScriptedEngine]:
    """Drafters of these fidelities, each with its own errors."""
    return [draft_engine(fidelity, seed) for seed, fidelity in enumerate(fidelities)]


def slower(factor: float) -> CostCurve:
    """Return the curve of a verifier that is not preferred to a faster one."""
    return CostCurve(tuple((tokens, factor * seconds) for tokens, seconds in VERIFY_CURVE.points))


class StallingRunner:
    """A runner that never returns after some passes."""

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


def prompt_of(rng: random.Random, tokens: int = 6) -> str:
    """A prompt of random letters that `LetterCodec` reads back."""
    return LetterCodec().decode([rng.randrange(VOCAB_TOKENS) for _ in range(tokens)])


def plain_stream(prompt: str, sampling: Sampling, *, tokens: int, eos: Sequence[int] = ()) -> tuple[int, ...]:
    engine = ScriptedEngine(vocab_tokens=VOCAB_TOKENS)
    return workload.plain_stream(engine, LetterCodec().encode(prompt), sampling, tokens=tokens, eos=eos)


def greedy_text(name: str, tokens: int) -> tuple[str, tuple[int, ...]]:
    """Return a prompt that a name determines, and the target's greedy text after it."""
    prompt = prompt_of(random.Random(name))
    return prompt, plain_stream(prompt, Sampling(), tokens=tokens)


async def assert_freed(swarm: SimulatedSwarm) -> None:
    """Assert that no engine of the swarm holds tokens or sequences of ended requests."""
    await asyncio.sleep(3.0)
    for member in swarm.members:
        if member.tasks[0].done():
            continue
        assert isinstance(member.engine, ScriptedEngine)
        held = (member.engine.live_tokens, member.engine.open_sequences, member.service.requests)
        assert held == (0, 0, 0), f"{member.identity.peer_id} still holds {held}"


@in_virtual_time
async def _in_a_swarm(scene: Callable[..., Awaitable[None]]) -> None:
    async with SimulatedSwarm() as swarm:
        await scene(swarm)


in_a_swarm = as_test(_in_a_swarm, given=1)
"""Makes a test of a coroutine function: its first argument is an empty swarm in virtual time."""


@in_virtual_time
async def generated(
    prompt: Any,
    *,
    target: Callable[[], ScriptedEngine] = target_engine,
    verifiers: int = 1,
    home: Callable[[], ScriptedEngine] | None = None,
    drafters: Sequence[ScriptedEngine] = (),
    is_lost: bool = False,
    client: dict[str, Any] | None = None,
    **options: Any,
) -> Generation:
    """Generate a text in a new swarm and check that all resources are freed.

    `home` creates the verifiers' own drafters. With `is_lost` there is one more verifier, and the first vanishes
    during the text. `client` has options of the client, `options` those of the swarm and of the text.
    """
    scene = {name: options.pop(name) for name in ("one_way_s", "codec") if name in options}
    async with SimulatedSwarm(facts=facts_of(options.pop("eos", ())), **scene) as swarm:
        served = [
            await swarm.verifier(target(), home=SimulatedHome(home()) if home else None)
            for _ in range(verifiers + is_lost)
        ]
        for number, engine in enumerate(drafters):
            await swarm.drafter(engine, domain=f"domain-{number}")
        asking = await swarm.client(**{"timeout_s": 60.0} | (client or {}))
        started = await asking.start(prompt, **{"seed": 7} | options)
        await heard(started, losing=served if is_lost else ())
        await assert_freed(swarm)
        return started.result()


async def heard(run: Run, *, losing: Sequence[SimulatedMember] = ()) -> Run:
    """Read a text to its end. The first verifier vanishes after some tokens if it is in `losing`."""
    tokens, first = 0, run.verifiers[0]
    async for chunk in run.chunks():
        tokens += len(chunk.token_ids)
        for member in losing:
            if tokens > LOST_AFTER_TOKENS and member.identity.peer_id == first and not member.is_killed:
                await member.kill()
    return run


async def preferred(
    swarm: SimulatedSwarm,
    suspect: Engine,
    *others: Engine,
    prompt: Any,
    identity: Identity | None = None,
    client: dict[str, Any],
    **options: Any,
) -> AsyncClient:
    """Return a client that audits every text and prefers a suspect, which it measured before `others` joined."""
    await swarm.verifier(suspect, identity=identity, **options)
    given: dict[str, Any] = {"strategy": "plain", "audit": 1.0} | client
    asking = await swarm.client(**given)
    await asking.generate(prompt, max_new_tokens=10, audit=0.0)
    for engine in others:
        await swarm.verifier(engine, curve=slower(1.3))
    return asking


async def audited(client: AsyncClient, prompt: Any, **options: Any) -> Generation:
    """Return a text after its audit."""
    run = await heard(await client.start(prompt, **options))
    await run.audited()
    return run.result()
