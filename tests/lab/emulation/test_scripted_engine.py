"""A scripted model chooses as a real one does, and its drafters have the requested agreement with it."""

from dataclasses import replace

import pytest
import torch

from cosine_engine.base import Row
from cosine_engine.sampling import Query
from cosine_engine.torch.sampling import choose
from cosine_lab.emulation.scripted_engine import ScriptedEngine, best_choice, keyed_scores, scripted_logits
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.thoroughness import quick_first

SHAPING = Shaping(
    presence_penalty=0.7,
    frequency_penalty=-0.4,
    logit_bias=tuple(TokenBias(token, 1.5) for token in range(0, 64, 3)),
    bad_words=((3, 9, 5), (9, 7), (11,), (4, 8)),
    min_tokens=20,
    held_back=(1, 2),
)
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.7, seed=5, top_k=5),
    Sampling(temperature=1.5, seed=5, top_p=0.7),
    Sampling(temperature=1.5, seed=5, min_p=0.2, repetition_penalty=1.2),
    Sampling(temperature=2.0, seed=5, top_k=30, top_p=0.9, min_p=0.05),
    *(Sampling(temperature=t, repetition_penalty=1.2, shaping=SHAPING) for t in (0.0, 1.0)),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_selection_rule_is_that_of_the_torch_engine(sampling: Sampling) -> None:
    for position in range(40):
        logits = scripted_logits(model_seed=1, vocab_tokens=64, tail=(position, 2))
        scripted = best_choice(keyed_scores(logits, sampling, seen=[3, 9], position=position), candidates=4)
        tensor = torch.tensor([logits], dtype=torch.float64).to(torch.float32)
        real = choose(tensor, [Query(sampling, position, 4, [3], [9])])[0]
        assert real is not None
        assert scripted.token == real.token
        assert scripted.margin == pytest.approx(real.margin, abs=1e-4)
        assert [t for t, _ in scripted.candidates] == [t for t, _ in real.candidates]
        assert [p for _, p in scripted.candidates] == pytest.approx([p for _, p in real.candidates], rel=1e-3)


@pytest.mark.parametrize("fidelity", quick_first([0.7, 0.0]))
def test_fidelity_is_the_share_of_agreement(fidelity: float) -> None:
    sampling = Sampling(temperature=1.0, seed=1)
    firsts = seconds = 0
    for branch in range(20):
        row = replace(Row.chain(0, [(branch * 13 + 7 * i * i) % 64 for i in range(40)]), candidates=2)
        target, drafter = ScriptedEngine(), ScriptedEngine(fidelity=fidelity, drafter_seed=3)
        for engine in (target, drafter):
            engine.open(sampling=sampling, prompt_tokens=1)
        truths, guesses = (engine.forward([row])[0].choices for engine in (target, drafter))
        for truth, guess in zip(truths, guesses, strict=True):
            firsts += truth.token == guess.token
            seconds += truth.token == guess.candidates[1][0]
    assert firsts / 800 == pytest.approx(fidelity, abs=0.06)
    assert seconds / 800 == pytest.approx((1 - fidelity) / 2, abs=0.06)
