"""The sizes foretold are those of loaded parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.torch.loading import read_config
from cosine_node.stages.engine import load_part
from cosine_node.stages.opening import part_sizes
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.staged import ranges
from tests.node.engine.tiny_models import COMMON, VOCAB, build
from tests.thoroughness import quick_first

FOUR: dict[str, Any] = COMMON | {"num_hidden_layers": 4}
TINY: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**FOUR),
    "llama-tied": lambda: tf.LlamaConfig(**FOUR, tie_word_embeddings=True),
    "gpt2-tied": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    ),
}


@pytest.mark.parametrize("name", quick_first(TINY, 2))
def test_parts_take_what_was_foretold(tmp_path: Path, name: str) -> None:
    build(TINY[name]()).save_pretrained(tmp_path)
    sizes = part_sizes(read_config(str(tmp_path)), dtype=torch.float32)
    assert sizes.layers == 4
    for part in (*ranges(1, 3, 4), LayerRange.whole(4)):
        loaded = load_part(str(tmp_path), part, dtype=torch.float32)
        weights = {weight.data_ptr(): weight.nbytes for weight in loaded.parameters()}
        found = sum(weights.values())
        # In a whole model the output layer may be the embedding.
        is_shared = len(part) == 4 and sizes.output_bytes == sizes.embedding_bytes and "tied" in name
        assert sizes.of(part) - found == is_shared * sizes.output_bytes, part
    assert part_sizes(read_config(str(tmp_path)), dtype=torch.bfloat16).of(part) * 2 == sizes.of(part)
