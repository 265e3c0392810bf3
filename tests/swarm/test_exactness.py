"""Text is the target's own for every strategy, sampling, set of drafters and delay, and nothing leaks."""

import random
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_protocol.request import Sampling
from tests.swarm.reference import assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import quick_first

TOKENS = 20
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T=0.8": {"temperature": 0.8},
    "filtered": {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
}


async def generated(
    *,
    strategy: str,
    prompt: str,
    sampling: Sampling,
    eos: tuple[int, ...],
    fidelities: list[float],
    one_way_s: float,
) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s, eos=eos) as swarm:
        await swarm.verifier(target_engine())
        for number, fidelity in enumerate(fidelities):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"domain-{number}")
        client = await swarm.client(strategy=strategy, timeout_s=60.0)
        generation = await client.generate(
            prompt,
            max_new_tokens=TOKENS,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
        )
        await assert_freed(swarm)
        return generation


@pytest.mark.parametrize("drafters", quick_first([2, 0, 1, 3, 4]))
@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("named", SAMPLINGS)
@pytest.mark.parametrize("strategy", ["plain", "cosine"])
def test_tokens_are_those_of_plain_decoding(strategy: str, named: str, one_way_s: float, drafters: int) -> None:
    for has_eos in (False, True):
        seed = f"{strategy} {named} {one_way_s} {drafters} {has_eos}"
        rng = random.Random(seed)
        prompt = prompt_of(rng)
        sampling = Sampling(**SAMPLINGS[named], seed=rng.getrandbits(64))
        fidelities = [rng.choice((0.0, 0.3, 0.7, 0.9, 1.0)) for _ in range(drafters)]
        whole = plain_stream(prompt, sampling, tokens=TOKENS)
        eos = (whole[rng.randrange(2, TOKENS - 2)],) if has_eos else ()
        expected = plain_stream(prompt, sampling, tokens=TOKENS, eos=eos)
        generation = run_virtual(
            generated(
                strategy=strategy,
                prompt=prompt,
                sampling=sampling,
                eos=eos,
                fidelities=fidelities,
                one_way_s=one_way_s,
            )
        )
        assert generation.token_ids == expected, seed
        assert generation.finish_reason == ("eos" if has_eos else "length"), seed
        assert generation.accepted <= len(expected), seed


def test_several_seeds_of_one_prompt_are_several_texts() -> None:
    prompt = prompt_of(random.Random("seeds"))
    texts = set()
    for seed in range(6):
        sampling = Sampling(temperature=1.0, seed=seed)
        run = generated(
            strategy="cosine", prompt=prompt, sampling=sampling, eos=(), fidelities=[0.8], one_way_s=0.005
        )
        generation = run_virtual(run)
        assert generation.token_ids == plain_stream(prompt, sampling, tokens=TOKENS), seed
        assert generation.seed == seed
        texts.add(generation.text)
    assert len(texts) == 6


def test_one_request_twice_is_one_text_and_one_time() -> None:
    prompt = prompt_of(random.Random("twice"))
    runs = [
        run_virtual(
            generated(
                strategy="cosine",
                prompt=prompt,
                sampling=Sampling(temperature=0.8, seed=5),
                eos=(),
                fidelities=[0.9, 0.4],
                one_way_s=0.02,
            )
        )
        for _ in range(2)
    ]
    assert runs[0].text == runs[1].text
    assert runs[0].seconds == runs[1].seconds
    assert runs[0].drafted == runs[1].drafted
