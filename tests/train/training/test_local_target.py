"""A target on this machine that answers many questions at once."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.base import PREFIX, Row
from cosine_engine.torch.engine import TorchEngine
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.training.answers import TargetPrompt
from cosine_train.training.local_target import LocalTarget
from tests.engine.tiny_models import COMMON

NEW_TOKENS = 12
EOS = 2
LENGTHS = (5, 1, 60, 3, 7, 4, 8)


def llama() -> Any:
    torch.manual_seed(1)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON))
    with torch.no_grad():
        # Untrained models have no preference: these choices are clear of rounding.
        model.lm_head.weight *= 30
    return model.eval()


def prompts(sampling: Sampling) -> list[TargetPrompt]:
    return [
        TargetPrompt(n, "code", tuple(range(3 + n, 3 + n + length)), sampling) for n, length in enumerate(LENGTHS)
    ]


def plain(engine: TorchEngine, prompt: TargetPrompt) -> list[int]:
    sequence = engine.open(sampling=prompt.sampling, prompt_tokens=len(prompt.tokens))
    row = Row.chain(sequence, prompt.tokens, scored_from=len(prompt.tokens) - 1)
    written: list[int] = []
    while True:
        (result,) = engine.forward([row])
        written.append(result.choices[-1].token)
        engine.keep(sequence, row.nodes)
        if written[-1] == EOS or len(written) == NEW_TOKENS:
            engine.release(sequence)
            return written
        row = Row(sequence, (written[-1],), (0,), (PREFIX,))


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_answers_are_the_tokens_of_a_verifier_greedy_and_sampled(slots: int) -> None:
    engine = TorchEngine(llama(), pool_tokens=256)
    target = LocalTarget(TorchEngine(llama(), pool_tokens=256), eos=[EOS], slots=slots, new_tokens=NEW_TOKENS)
    assert list(target.answers([])) == []
    asked = prompts(Sampling())
    asked[::2] = prompts(Sampling(temperature=0.8, seed=5))[::2]
    found = {answer.question: answer for answer in target.answers(asked)}
    assert len(found) == len(asked)
    for prompt in asked:
        assert found[prompt.question].prompt == prompt.tokens
        assert list(found[prompt.question].tokens) == plain(engine, prompt)


def test_a_prompt_longer_than_the_cache_and_a_broken_model_are_refused() -> None:
    model = llama()
    target = LocalTarget(TorchEngine(model, pool_tokens=64), eos=[EOS], slots=1, new_tokens=4)
    with pytest.raises(UsageError, match="too long"):
        list(target.answers([TargetPrompt(0, "code", tuple(range(3, 70)), Sampling())]))
    with torch.no_grad():
        model.lm_head.weight[:] = torch.nan
    with pytest.raises(UsageError, match="NaN"):
        list(target.answers(prompts(Sampling())[:1]))
