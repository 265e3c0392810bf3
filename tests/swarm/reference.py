"""What every run is compared with: the plain stream, one token at a time, and an empty swarm afterwards."""

import asyncio
import random
from collections.abc import Sequence

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation import workload
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_protocol.request import Sampling

VOCAB_TOKENS = 32


def target_engine() -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS)


def draft_engine(fidelity: float, seed: int = 0) -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS, fidelity=fidelity, drafter_seed=seed)


def prompt_of(rng: random.Random, tokens: int = 6) -> str:
    """A prompt of random letters that `LetterCodec` reads back."""
    return LetterCodec().decode([rng.randrange(VOCAB_TOKENS) for _ in range(tokens)])


def plain_stream(
    prompt: str, sampling: Sampling, *, tokens: int, eos: Sequence[int] = (), vocab_tokens: int = VOCAB_TOKENS
) -> tuple[int, ...]:
    """The target's own stream: no tree, no batch, no network."""
    engine = ScriptedEngine(vocab_tokens=vocab_tokens)
    return workload.plain_stream(engine, LetterCodec().encode(prompt), sampling, tokens=tokens, eos=eos)


async def assert_freed(swarm: SimulatedSwarm, *, within_s: float = 3.0) -> None:
    """No engine of the swarm holds a token or a sequence of a request that is over."""
    await asyncio.sleep(within_s)
    for member in swarm.members:
        if member.tasks[0].done():
            continue
        assert isinstance(member.engine, ScriptedEngine)
        held = (member.engine.live_tokens, member.engine.open_sequences, member.service.requests)
        assert held == (0, 0, 0), f"{member.identity.peer_id} still holds {held}"
