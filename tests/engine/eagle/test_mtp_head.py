"""A model's MTP layer as a draft head: its drafts follow the paper's formula with the checkpoint's weights."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cosine_engine.base import Row
from cosine_engine.eagle.head_engine import HeadEngine
from cosine_engine.eagle.mtp_head import MtpHead, MtpLayer
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.loading import read_config
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.eagle.small_mtp import LAYERS, MODELS, WEIGHTS, Reference, write_checkpoint
from tests.engine.loaded import torch_engine
from tests.engine.tiny_models import VOCAB, tiny_llama

TEXT = [(37 * place + 5) % VOCAB for place in range(24)]


class NotingHead(MtpHead):
    def __init__(self, layer: MtpLayer, target: Any) -> None:
        super().__init__(layer, target)
        self.noted = torch.empty(0)

    def logits(self, output: Tensor) -> Tensor:
        self.noted = super().logits(output)
        return self.noted


def layer_of(folder: Path) -> MtpLayer:
    return MtpLayer.load(folder, read_config(str(folder)), dtype=torch.float32)


def engines(folder: Path) -> tuple[TorchEngine, HeadEngine, NotingHead]:
    """Return a target, and its MTP layer as a drafter."""
    target = torch_engine(folder, pool_tokens=256, feature_layers=(LAYERS,))
    head = NotingHead(layer_of(folder), target.model)
    return target, HeadEngine(head, target.embedding, pool_tokens=256), head


def read_text(target: TorchEngine, drafter: HeadEngine) -> int:
    """Feed a text but its last token to the target, and the text after its first token to the drafter."""
    seen = target.open(sampling=Sampling(), prompt_tokens=len(TEXT))
    row = Row.chain(seen, TEXT[:-1])
    target.forward([row])
    target.keep(seen, row.nodes)
    sequence = drafter.open(sampling=Sampling(), prompt_tokens=len(TEXT) - 1)
    made = target.activations(seen, 0, len(TEXT) - 1)
    drafter.forward([replace(Row.chain(sequence, TEXT[1:]), activations=made)])
    return sequence


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_drafted_tokens_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    reference = Reference(name, tmp_path)
    target, drafter, head = engines(tmp_path)
    sequence = read_text(target, drafter)
    last = len(TEXT) - 2
    for step, expected in enumerate(reference.drafts(TEXT, 3)):
        assert torch.allclose(head.noted[-1], expected, atol=1e-4), f"token {step + 1}"
        row = Row(sequence, (int(expected.argmax()),), (last + step + 1,), (last + step,))
        drafter.forward([row])


@pytest.mark.parametrize("name", ["glm4_moe", "qwen3_5"])
def test_the_layer_of_a_language_model_inside_another_is_found_in_any_file(name: str, tmp_path: Path) -> None:
    write_checkpoint(name, tmp_path)
    expected = layer_of(tmp_path).state_dict()
    weights = load_file(tmp_path / WEIGHTS)
    inside = {each.replace("model.layers.", "model.language_model.layers."): own for each, own in weights.items()}
    (tmp_path / WEIGHTS).unlink()
    for number, part in enumerate((list(inside)[::2], list(inside)[1::2])):
        save_file({each: inside[each] for each in part}, tmp_path / f"model-{number}.safetensors")
    found = layer_of(tmp_path).state_dict()
    assert all(torch.equal(found[each], expected[each]) for each in expected)


def refused(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        layer_of(folder)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("enorm", None, "lacks a norm"),
        ("self_attn.q_proj", None, "no layer of a model of type 'glm4_moe'"),
        ("eh_proj", lambda weight: weight[:5].clone(), "no layer of a model of type 'glm4_moe'"),
        ("self_attn.q_proj", lambda weight: weight[:5].clone(), "no layer of a model of type 'glm4_moe'"),
        ("self_attn.q_proj", lambda weight: weight.to(torch.float8_e4m3fn), "float8_e4m3fn"),
    ],
)
def test_a_layer_without_a_weight_or_with_another_is_refused(
    part: str, change: Callable[[Tensor], Tensor] | None, said: str, tmp_path: Path
) -> None:
    write_checkpoint("glm4_moe", tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    name = f"model.layers.{LAYERS}.{part}.weight"
    weight = weights.pop(name)
    save_file(weights if change is None else weights | {name: change(weight)}, tmp_path / WEIGHTS)
    assert said in refused(tmp_path)


def test_a_model_without_mtp_layers_or_with_one_of_linear_attention_is_refused(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "llama")
    assert "no MTP layer" in refused(tmp_path / "llama")
    write_checkpoint("qwen3_5", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8")) | {"mtp_layer_types": ["linear_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert "its MTP layer is of the kind linear_attention" in refused(tmp_path)
