"""A swarm of scripted engines whose tokens are letters, and the text its target stands for."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.options import choice_seed
from cosine_protocol.errors import PromptRefused
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.swarm.reference import draft_engine, plain_stream, target_engine

MODEL: Final = "zoo:target"
PROMPT: Final = "01234567"
QUICK: Final = CostCurve(((1, 0.002), (64, 0.002)))
SLOW: Final = CostCurve(((1, 0.05), (64, 0.05)))


class ChatLetters(LetterCodec):
    """A chat is its messages' contents one after the other; there is no role but user and assistant."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        if any(message["role"] not in ("user", "assistant") for message in messages):
            raise PromptRefused("The target's chat template refused the messages: no such role.")
        return self.encode("".join(message["content"] for message in messages))


@asynccontextmanager
async def letter_swarm(
    *,
    curve: CostCurve = QUICK,
    verifiers: int = 1,
    published: GenerationDefaults | None = None,
    **config: Any,
) -> AsyncIterator[SimulatedSwarm]:
    """Some verifiers and a drafter that is right nine times in ten; `config` is the verifiers'."""
    async with SimulatedSwarm(one_way_s=0.001, codec=ChatLetters(), generation_defaults=published) as swarm:
        for _ in range(verifiers):
            await swarm.verifier(target_engine(), curve=curve, **config)
        await swarm.drafter(draft_engine(0.9), curve=QUICK)
        yield swarm


async def letter_client(swarm: SimulatedSwarm, **options: Any) -> AsyncClient:
    """A client of the swarm that every request shares."""
    # By itself a client so near would hand its coordination over or keep it as the machine has time.
    return await swarm.client(**{"coordination": "client", **options})


def text_of(prompt: str, *, tokens: int, temperature: float = 0.0, seed: int = 0, choice: int = 0) -> str:
    """The text that the target writes on its own."""
    sampling = Sampling(temperature=temperature, seed=choice_seed(seed, choice))
    return LetterCodec().decode(plain_stream(prompt, sampling, tokens=tokens))
