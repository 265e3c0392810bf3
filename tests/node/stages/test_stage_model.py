"""What a stage says of itself, and the models that cannot be run in parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.torch.partial_model import LayerBefore
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.stages.engine import StageModel
from tests.node.engine.staged import CPU, load_stages, ranges, whole_engine
from tests.node.engine.tiny_models import COMMON, OWN_ATTENTION, RECURRENT, SHARING, VOCAB, build
from tests.thoroughness import quick_first

UNCUT: dict[str, Any] = {
    "bloom": (OWN_ATTENTION["bloom"], 2, "passes cannot be packed"),
    "lfm2": (RECURRENT["lfm2"], 2, "passes cannot be packed"),
    "gemma3n": (SHARING["Gemma3n"], 6, "share their keys and values"),
    "gemma4": (SHARING["Gemma4"], 6, "share their keys and values"),
}


def test_stages_hold_their_share_of_weights_and_of_the_pool(tmp_path: Path) -> None:
    build(tf.LlamaConfig(**COMMON | {"num_hidden_layers": 4})).save_pretrained(tmp_path)
    whole = whole_engine(tmp_path, pool_tokens=100)
    first, middle, last = load_stages(tmp_path, ranges(1, 3, 4), slots=100)
    for stage in (first, middle, last):
        assert (stage.vocab_tokens, stage.context_tokens, stage.hidden_width) == (VOCAB, 256, 64)
        assert (stage.numerics, stage.dtype, stage.slots) == ("float32", torch.float32, 112)
        # Two heads of 16, keys and values, four bytes each.
        assert stage.token_bytes == TokenBytes(len(stage.layers) * 2 * 16 * 2 * 4)
    assert first.pool_bytes + middle.pool_bytes + last.pool_bytes == whole.pool_bytes
    layer_bytes = (middle.weights_bytes - 64 * 4) // 2
    assert first.weights_bytes - layer_bytes == pytest.approx(VOCAB * 64 * 4, abs=1000)


@pytest.mark.parametrize("kind", quick_first(UNCUT))
def test_models_that_cannot_be_cut_are_refused(tmp_path: Path, kind: str) -> None:
    make, layers, reason = UNCUT[kind]
    build(make()).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        load_stages(tmp_path, ranges(layers // 2, layers), slots=64)


def test_a_stage_whose_passes_are_wrong_is_found_by_the_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=256)).save_pretrained(
        tmp_path
    )
    part = ranges(1, 2)[1]

    def forward(self: LayerBefore, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        del self, args
        return hidden_states.roll(1, -1) if "plan" in kwargs else hidden_states

    monkeypatch.setattr(LayerBefore, "forward", forward)
    with pytest.raises(UnsupportedModel, match="in a self-test a prompt gave other logits"):
        StageModel.load(str(tmp_path), part, dtype=torch.float32, device=CPU, slots=64)
