"""The reference of the self-test is what `generate` computes; the other own way differs by rounding alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from cosine_node.engine.self_test import SelfTestTexts
from cosine_node.engine.torch.load_self_test import cached_logits, cacheless_logits
from cosine_node.engine.torch.support import UnsupportedModel
from tests.node.engine.tiny_models import ARCHITECTURES, VOCAB, WINDOWED, build, tiny_llama

TEXTS = SelfTestTexts.of(vocab_tokens=VOCAB, context_tokens=256, has_window=True, attempt=0)


@pytest.mark.parametrize(
    "make",
    [ARCHITECTURES["Llama"], ARCHITECTURES["GPT2"], ARCHITECTURES["OPT"], WINDOWED["Gemma3"], WINDOWED["GptOss"]],
    ids=["llama", "gpt2", "opt", "gemma3", "gpt_oss"],
)
def test_the_reference_is_what_generate_computes(make: Callable[[], Any]) -> None:
    model = build(make())
    text = (*TEXTS.long, *TEXTS.branches[1], TEXTS.after_branch)
    output = model.generate(
        torch.tensor([TEXTS.long]),
        generation_config=GenerationConfig(
            max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0
        ),
        # Lets it write the given text.
        prefix_allowed_tokens_fn=lambda batch, ids: [text[len(ids)]],
    )
    with torch.inference_mode():
        expected = cached_logits(model, TEXTS)
    for step, logits in enumerate(output.logits):
        torch.testing.assert_close(expected[text[: len(TEXTS.long) + step]], logits[0], rtol=0, atol=1e-5)


def test_the_other_way_of_a_sound_model_differs_by_rounding() -> None:
    model = tiny_llama()
    with torch.inference_mode():
        expected, found = cached_logits(model, TEXTS), cacheless_logits(model, TEXTS)
        again = cacheless_logits(model, TEXTS)
    assert found.keys() <= expected.keys()
    for text, logits in found.items():
        assert 0 < (logits - expected[text]).abs().max() < 1e-5
        assert torch.equal(logits, again[text])


def test_a_model_without_a_cache_is_refused() -> None:
    model = tiny_llama()
    forward = model.forward
    model.forward = lambda **arguments: forward(**(arguments | {"use_cache": False}))
    with pytest.raises(UnsupportedModel, match="keeps no cache"):
        cached_logits(model, TEXTS)
