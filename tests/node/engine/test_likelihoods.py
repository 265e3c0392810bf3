"""Log-probabilities are those of the model's own logits, whatever else a pass feeds."""

import math
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
import torch

from cosine_node.engine.base import PREFIX, Engine, Row
from cosine_node.engine.torch import sampling as torch_sampling
from cosine_protocol.likelihoods import Likelihood, log_probability_of
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.node.engine.engines import MODELS, Kind
from tests.node.engine.tiny_models import VOCAB

TOLD: Final = {name: kind for name, kind in MODELS.items() if name != "chain of stages"}
TOP: Final = 5
SHAPED: Final = Sampling(
    temperature=0.7, top_k=3, seed=5, repetition_penalty=1.5, shaping=Shaping(logit_bias=(TokenBias(7, 50.0),))
)
"""With all that moves the choice and none of what is told."""


def model_of(kind: Kind) -> Any:
    assert kind.model is not None
    return kind.model()


def reference(model: Any, tokens: list[int]) -> Any:
    """Log-probabilities after each token, [tokens, vocab], by transformers."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)


def check(told: Any, token: int, log_probs: Any) -> None:
    assert log_probability_of(told.surprisal) == pytest.approx(float(log_probs[token]), abs=2e-5)
    values, ids = log_probs.topk(TOP)
    assert [each.token for each in told.top] == ids.tolist()
    assert [log_probability_of(each.surprisal) for each in told.top] == pytest.approx(values.tolist(), abs=2e-5)


@pytest.mark.parametrize("kind", TOLD.values(), ids=TOLD)
def test_those_of_a_text_in_pieces_are_transformers_own(kind: Kind) -> None:
    """The sum of those of its end is what lm-eval takes for the likelihood of an answer."""
    engine, chance = kind.make(512), Random(1)
    text = [chance.randrange(3, VOCAB) for _ in range(90)]
    log_probs = reference(model_of(kind), text)
    sequence = engine.open(sampling=SHAPED, prompt_tokens=len(text))
    found: list[Likelihood] = []
    for start in range(0, len(text), 32):
        chunk = text[start : start + 32]
        row = Row.chain(sequence, chunk, scored_from=len(chunk))
        followers = tuple([*text[1:], 3][start : start + 32])
        row = replace(row, followers=followers, top=TOP)
        [result] = engine.forward([row])
        engine.keep(sequence, row.nodes)
        found += result.likelihoods
    for place, told in enumerate(found[:-1]):
        check(told, text[place + 1], log_probs[place])
    answer = math.fsum(log_probability_of(told.surprisal) for told in found[59:-1])
    expected = math.fsum(float(log_probs[place][text[place + 1]]) for place in range(59, len(text) - 1))
    assert answer == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", TOLD.values(), ids=TOLD)
def test_those_of_choices_in_a_tree_are_of_their_own_paths_and_before_all_shaping(kind: Kind) -> None:
    engine: Engine = kind.make(512)
    prompt = [5, 9, 12, 31, 8]
    other = engine.open(sampling=Sampling(), prompt_tokens=2)
    sequence = engine.open(sampling=SHAPED, prompt_tokens=len(prompt))
    engine.forward([Row.chain(sequence, prompt[:-1], scored_from=len(prompt) - 1)])
    engine.keep(sequence, range(len(prompt) - 1))
    tree = Row(sequence, (prompt[-1], 40, 41, 42), (0, 1, 2, 3), (PREFIX, 0, 0, 1), followers=(None,) * 4, top=TOP)
    beside = Row.chain(other, [3, 4])
    silent, [result] = engine.forward([beside]), engine.forward([tree])
    assert silent[0].likelihoods == ()
    paths = [[], [40], [41], [40, 42]]
    for told, choice, path in zip(result.likelihoods, result.choices, paths, strict=True):
        check(told, choice.token, reference(model_of(kind), [*prompt, *path])[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_those_of_a_row_are_the_same_whatever_stands_beside_it(dtype: torch.dtype) -> None:
    """What deterministic passes compute alike is told alike."""
    logits = (8 * torch.randn(9, 50_001, generator=torch.Generator().manual_seed(1))).to(dtype)
    tokens = list(range(9))
    together = torch_sampling.likelihoods_after(logits, tokens, top=20)
    alone = [torch_sampling.likelihoods_after(logits[row : row + 1], [row], top=20)[0] for row in tokens]
    assert together == alone
