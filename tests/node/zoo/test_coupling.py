"""Coupling on the embedded models: a drafter that shares the target's noise proposes what it is about to sample."""

from dataclasses import replace
from statistics import mean

import pytest
from tokenizers import Tokenizer

from cosine_node import zoo
from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import load_engine
from cosine_protocol.request import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TOKENS = 64
SAMPLING = Sampling(temperature=1.0, seed=11)


def stream(target: TorchEngine, prompt: list[int], sampling: Sampling) -> list[int]:
    """The target's own sampled output, one token a pass."""
    sequence = target.open(sampling=sampling, prompt_tokens=len(prompt))
    pending = list(prompt)
    output: list[int] = []
    while len(output) < TOKENS:
        names = tuple(range(len(pending)))
        row = Row(sequence, tuple(pending), names, (PREFIX, *names[:-1]), scored_from=len(pending) - 1)
        (result,) = target.forward([row])
        target.keep(sequence, names)
        pending = [result.choices[0].token]
        output += pending
    target.release(sequence)
    return output


def agreement(drafter: TorchEngine, prompt: list[int], output: list[int], sampling: Sampling) -> float:
    """How often the drafter's own choice along the target's output is the target's token."""
    sequence = drafter.open(sampling=sampling, prompt_tokens=len(prompt))
    tokens = (*prompt, *output[:-1])
    names = tuple(range(len(tokens)))
    (result,) = drafter.forward([Row(sequence, tokens, names, (PREFIX, *names[:-1]), scored_from=len(prompt) - 1)])
    drafter.release(sequence)
    return mean(choice.token == token for choice, token in zip(result.choices, output, strict=True))


def test_shared_noise_raises_acceptance_over_independent_draws_in_every_domain() -> None:
    tokenizer = Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))
    target = load_engine(str(zoo.folder("target")), dtype="float32", device="cpu", pool_tokens=1024)
    for domain in zoo.DOMAINS:
        drafter = load_engine(str(zoo.folder(f"draft-{domain}")), dtype="float32", device="cpu", pool_tokens=1024)
        coupled, independent = [], []
        for prompt in zoo.prompts(domain)[:3]:
            ids = tokenizer.encode(prompt.render()).ids
            output = stream(target, ids, SAMPLING)
            coupled.append(agreement(drafter, ids, output, SAMPLING))
            independent.append(agreement(drafter, ids, output, replace(SAMPLING, seed=12)))
        assert mean(coupled) > mean(independent) + 0.1, (domain, mean(coupled), mean(independent))
