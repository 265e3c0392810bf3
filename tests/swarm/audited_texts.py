"""Texts of a client that audits each of them: which were wrong, whom it holds to be a liar, what audits found."""

import random
from dataclasses import dataclass

from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.request import Sampling
from tests.swarm.reference import plain_stream, prompt_of


@dataclass(frozen=True, slots=True)
class AuditedTexts:
    """How many texts came wrong, the verifiers that were convicted, and the state of each audit."""

    wrong: int
    convicted: frozenset[str]
    states: tuple[AuditState, ...]


async def audited_texts(swarm: SimulatedSwarm, *, texts: int, tokens: int, seed: int) -> AuditedTexts:
    """Ask for so many texts, each once the one before has been audited."""
    client = await swarm.client(strategy="plain", identity=numbered_identity(40_000 + seed), audit=1.0)
    rng, wrong, states = random.Random(seed), 0, []
    for number in range(texts):
        prompt = prompt_of(rng)
        under_way = await client.start(prompt, max_new_tokens=tokens, seed=number)
        async for _ in under_way.chunks():
            pass
        await under_way.audited()
        done = under_way.result()
        assert done.audit is not None
        states.append(done.audit.state)
        wrong += done.token_ids != plain_stream(prompt, Sampling(seed=number), tokens=tokens)
    return AuditedTexts(wrong, client.convicted, tuple(states))
