"""A verifier whose model is in parts, in a whole swarm: the texts are those of the whole model."""

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node import zoo
from cosine_node.chains.engine import ChainEngine
from cosine_node.engine.base import Engine
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.engine import StageEngine
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.engine.decoding import Decoded, decoded
from tests.node.engine.local_chain import LocalChain
from tests.node.engine.staged import load_stages, ranges, whole_engine
from tests.swarm.text_drafter import TextDrafter
from tests.thoroughness import quick_first

TARGET: Final = zoo.location("target")
CLIENTS: Final = 8
TOKENS: Final = 12
POOL_TOKENS: Final = 192
"""Less than all requests together need: some are preempted."""
PROMPTS: Final = tuple(
    f"{opening} {topic}"
    for opening in ("Question: What do we know of rivers, mountains and the open sea? Tell me about", "Once")
    for topic in ("the sun.", "a fox.", "numbers.", "a heart.")
)
"""Some begin alike, with more than a page of tokens."""


def sampling_of(number: int) -> Sampling:
    """Every other request is greedy."""
    return Sampling(temperature=0.8 * (number % 2), seed=number)


async def answered(engine: Engine, codec: TextTokenizer, texts: Sequence[Sequence[int]]) -> list[Generation]:
    """The answers to all clients at once, equally long, from a swarm whose drafters know these texts."""
    async with SimulatedSwarm(codec=codec, eos=()) as swarm:
        verifier = await swarm.verifier(engine, max_requests=CLIENTS)
        for wrong_at, domain in enumerate(("code", "math")):
            drafter = TextDrafter(texts, vocab_tokens=engine.vocab_tokens, wrong_at=wrong_at)
            await swarm.drafter(drafter, domain=domain, max_requests=CLIENTS)
        clients = [await swarm.client() for _ in PROMPTS]
        asked = []
        for number, (client, prompt) in enumerate(zip(clients, PROMPTS, strict=True)):
            sampling = sampling_of(number)
            asked.append(
                client.generate(prompt, max_new_tokens=TOKENS, temperature=sampling.temperature, seed=sampling.seed)
            )
        found = list(await asyncio.gather(*asked))
        assert isinstance(verifier.service, VerifierService)
        assert verifier.service.counts.preempted
        return found


def plain_answers(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Decoded]:
    """What an engine says by itself."""
    samplings = [sampling_of(number) for number in range(len(prompts))]
    return decoded(engine, prompts, [TOKENS] * len(prompts), at_once=1, samplings=samplings)


@pytest.mark.parametrize("cut", quick_first([(3, 8), (2, 5, 8)]), ids=str)
def test_eight_clients_of_a_model_in_parts_read_what_the_whole_model_says(cut: tuple[int, ...]) -> None:
    files = TokenizerFiles.read(TARGET)
    assert files is not None
    codec = TextTokenizer(files.files)
    whole = whole_engine(TARGET, pool_tokens=POOL_TOKENS)
    prompts = [codec.encode(prompt) for prompt in PROMPTS]
    alone = plain_answers(whole, prompts)
    texts = [[*prompt, *one.tokens] for prompt, one in zip(prompts, alone, strict=True)]
    stages = [
        StageEngine(model, PagePool(tokens=POOL_TOKENS))
        for model in load_stages(TARGET, ranges(*cut), slots=POOL_TOKENS)
    ]
    head = ChainEngine(
        LocalChain(stages),
        PagePool(tokens=POOL_TOKENS),
        vocab_tokens=whole.vocab_tokens,
        context_tokens=whole.context_tokens,
        numerics=whole.numerics,
    )
    answers = run_virtual(answered(head, codec, texts))
    assert [list(answer.token_ids) for answer in answers] == [one.tokens for one in alone]
    # Trees were checked, and not only texts decoded.
    assert sum(answer.accepted for answer in answers) > len(answers) * TOKENS / 4
    assert (head.live_tokens, head.open_sequences) == (0, 0)
