"""A drafter before its training: layers and tokens of its target, a small model, an earlier drafter's weights."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.new_drafter import drafter_of
from tests.engine.tiny_models import ARCHITECTURES, VOCAB

ALL = DraftVocabulary(tuple(range(VOCAB)))


def target(name: str) -> Any:
    torch.manual_seed(2)
    return tf.AutoModelForCausalLM.from_config(ARCHITECTURES[name]()).eval()


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "GPT2", "GPTNeoX", "Olmo2"])
def test_all_layers_and_tokens_are_the_target_itself(name: str) -> None:
    model = target(name)
    drafter = drafter_of(model, layers=(0, 1), vocabulary=ALL).eval()
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        found, expected = drafter(input_ids=tokens).logits[..., :VOCAB], model(input_ids=tokens).logits
    assert torch.allclose(found, expected, atol=1e-5)
