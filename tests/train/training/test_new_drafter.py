"""A drafter before its training: layers and tokens of its target, a small model, an earlier drafter's weights."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.new_drafter import adopt, drafter_of
from tests.engine.tiny_models import ARCHITECTURES, VOCAB

ALL = DraftVocabulary(tuple(range(VOCAB)))
SOME = DraftVocabulary((3, 17, 150))


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


def test_some_layers_and_tokens_are_taken() -> None:
    model = target("Llama")
    # As many tokens as the target's are distinct.
    most = DraftVocabulary(tuple(range(1, VOCAB)))
    rows = drafter_of(model, layers=(0,), vocabulary=most).get_input_embeddings().weight
    assert torch.equal(rows[:-1], model.get_input_embeddings().weight[1:])
    drafter = drafter_of(model, layers=(-1,), vocabulary=SOME)
    assert drafter.config.num_hidden_layers == 1
    taken, given = drafter.model.layers[0].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight
    assert torch.equal(taken, given)
    rows, all_rows = drafter.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert torch.equal(rows[:-1], all_rows[list(SOME.target_ids)])
    assert torch.allclose(rows[-1], all_rows.mean(0))


def test_a_drafter_adopts_what_another_learned_and_keeps_tokens_that_are_new_to_it() -> None:
    model = target("Llama")
    earlier = drafter_of(model, layers=(0,), vocabulary=SOME)
    with torch.no_grad():
        for weight in earlier.parameters():
            weight += 1
    vocabulary = DraftVocabulary((3, 9, 150))
    drafter = drafter_of(model, layers=(0,), vocabulary=vocabulary)
    adopt(drafter, earlier, vocabulary, SOME)
    assert torch.equal(drafter.model.layers[0].mlp.up_proj.weight, earlier.model.layers[0].mlp.up_proj.weight)
    rows, old = drafter.get_input_embeddings().weight, earlier.get_input_embeddings().weight
    assert torch.equal(rows[[0, 2, 3]], old[[0, 2, 3]])
    assert torch.equal(rows[1], model.get_input_embeddings().weight[9])
