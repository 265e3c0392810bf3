"""A part of a model is loaded from its own tensors alone, and from no file that has none of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from cosine_node.engine.torch.partial_model import AbsentLayer, AbsentOutput, StandInEmbedding
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.stages.engine import load_part
from cosine_protocol.errors import UsageError
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.staged import ranges
from tests.node.engine.tiny_models import COMMON, LATENT, VOCAB, build
from tests.thoroughness import quick_first

FOUR: dict[str, Any] = COMMON | {"num_hidden_layers": 4}
KINDS: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**FOUR),
    "llama-tied": lambda: tf.LlamaConfig(**FOUR, tie_word_embeddings=True),
    "gpt2": lambda: tf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=256),
    "mixtral": lambda: tf.MixtralConfig(**FOUR, num_local_experts=4),
}
WEIGHTS = "model.safetensors"


def in_a_file_a_layer(folder: Path, list_name: str) -> None:
    """Cut a folder's weights into a file for each layer, one for the embedding, and one for all else."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    of_file: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        parts = key.split(".")
        name = "rest"
        if list_name in parts:
            name = f"layer{parts[parts.index(list_name) + 1]}"
        elif parts[-2] in ("embed_tokens", "wte"):
            name = "embedding"
        of_file.setdefault(f"{name}.safetensors", {})[key] = tensor
    for name, held in of_file.items():
        save_file(held, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, held in of_file.items() for key in held}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index), encoding="utf-8")


def stored_part(model: Any, name: str) -> torch.Tensor:
    found: torch.Tensor = model.get_parameter(name)
    return found


@pytest.mark.parametrize("kind", quick_first(KINDS, quick=2))
def test_files_of_other_parts_need_not_be_there(tmp_path: Path, kind: str) -> None:
    whole = build(KINDS[kind]())
    whole.save_pretrained(tmp_path)
    in_a_file_a_layer(tmp_path, "h" if kind == "gpt2" else "layers")
    is_tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    for part in ranges(1, 3, 4):
        needed = {f"layer{index}" for index in range(part.first, part.end)} | {"rest"}
        if part.is_first or (part.is_last and is_tied):
            needed.add("embedding")
        moved = [path for path in tmp_path.glob("*.safetensors") if path.stem not in needed]
        assert moved
        for path in moved:
            path.rename(path.with_suffix(".gone"))
        model = load_part(str(tmp_path), part, dtype=torch.float32)
        for path in moved:
            path.with_suffix(".gone").rename(path)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(weight, stored_part(whole, name), rtol=0, atol=0, msg=name)


def test_a_file_that_is_needed_and_gone_is_named(tmp_path: Path) -> None:
    build(KINDS["llama"]()).save_pretrained(tmp_path)
    in_a_file_a_layer(tmp_path, "layers")
    (tmp_path / "layer2.safetensors").unlink()
    load_part(str(tmp_path), LayerRange(first=0, end=2, layers=4), dtype=torch.float32)
    with pytest.raises(UsageError, match=r"has no file layer2\.safetensors"):
        load_part(str(tmp_path), LayerRange(first=1, end=3, layers=4), dtype=torch.float32)


def test_a_part_weighs_its_share(tmp_path: Path) -> None:
    whole = build(KINDS["llama"]())
    whole.save_pretrained(tmp_path)
    layer = sum(weight.numel() for weight in whole.model.layers[0].parameters())
    embedding, norm = VOCAB * 64, 64
    weights = [
        sum(weight.numel() for weight in load_part(str(tmp_path), part, dtype=torch.float32).parameters())
        for part in ranges(1, 3, 4)
    ]
    assert weights == [layer + embedding + norm, 2 * layer + norm, layer + embedding + norm]


def test_what_a_part_lacks_has_stand_ins_with_the_plain_attributes_of_layers(tmp_path: Path) -> None:
    mixed = ["sliding_attention", "full_attention"] * 2
    config = tf.Gemma2Config(**FOUR, head_dim=16, sliding_window=6, layer_types=mixed)
    whole = build(config)
    whole.save_pretrained(tmp_path)
    model = load_part(str(tmp_path), LayerRange(first=1, end=3, layers=4), dtype=torch.float32)
    assert [isinstance(layer, AbsentLayer) for layer in model.model.layers] == [True, False, False, True]
    assert isinstance(model.get_input_embeddings(), StandInEmbedding)
    assert isinstance(model.get_output_embeddings(), AbsentOutput)
    assert model.model.layers[0].hidden_size == whole.model.layers[0].hidden_size
    embedded = model.get_input_embeddings()(torch.arange(500))
    assert embedded.shape == (500, 64)
    # Each token has activations of its own.
    assert float(torch.corrcoef(embedded).fill_diagonal_(0).abs().max()) < 0.8


def test_what_cannot_be_loaded_in_parts_is_refused_with_the_reason(tmp_path: Path) -> None:
    build(KINDS["llama"]()).save_pretrained(tmp_path / "llama")
    with pytest.raises(UnsupportedModel, match="it has 4 layers, not 5"):
        load_part(str(tmp_path / "llama"), LayerRange.whole(5), dtype=torch.float32)
    tensors = load_file(tmp_path / "llama" / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "llama" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight, for layers 0:2"):
        load_part(str(tmp_path / "llama"), LayerRange(first=0, end=2, layers=4), dtype=torch.float32)
    (tmp_path / "llama" / WEIGHTS).unlink()
    with pytest.raises(UsageError, match=r"has no file model\.safetensors, nor"):
        load_part(str(tmp_path / "llama"), LayerRange(first=0, end=2, layers=4), dtype=torch.float32)
    build(LATENT["LongcatFlash"]()).save_pretrained(tmp_path / "longcat")
    with pytest.raises(UnsupportedModel, match="cannot be told"):
        load_part(str(tmp_path / "longcat"), LayerRange(first=0, end=1, layers=2), dtype=torch.float32)
    config = json.loads((tmp_path / "llama" / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match="is stored in gptq and cannot be loaded in parts"):
        load_part(str(tmp_path / "llama"), LayerRange.whole(4), dtype=torch.float32)
