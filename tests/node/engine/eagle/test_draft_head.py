"""A draft head's folder: as heads are published, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosine_node.engine.eagle.draft_head import EagleHead, HeadShape
from cosine_node.models.home_model import is_eagle_head
from cosine_protocol.errors import UsageError
from tests.node.engine.eagle.small_head import SHAPE, VOCABULARY, random_head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_head().save(tmp_path)
    return tmp_path


def test_a_head_is_read_as_it_was_written(folder: Path) -> None:
    head = EagleHead.load(folder, target_layers=2)
    assert is_eagle_head(folder)
    assert head.shape == SHAPE
    assert head.vocabulary.target_ids == VOCABULARY.target_ids
    written = {name: weight.to(torch.bfloat16) for name, weight in random_head().state_dict().items()}
    assert all(torch.equal(weight.to(torch.bfloat16), written[name]) for name, weight in head.state_dict().items())


def test_names_are_those_of_published_heads(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    layer = {f"midlayer.self_attn.{each}_proj.weight" for each in "qkvo"}
    layer |= {f"midlayer.mlp.{each}_proj.weight" for each in ("gate", "up", "down")}
    layer |= {f"midlayer.{each}.weight" for each in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    assert stored.keys() == layer | {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    # d2t is what is added to a drafted id, t2d tells which of the target's tokens may be drafted.
    drafted = torch.arange(SHAPE.draft_tokens) + stored["d2t"]
    assert tuple(drafted.tolist()) == VOCABULARY.target_ids
    assert stored["t2d"].nonzero()[:, 0].tolist() == drafted.tolist()


def test_a_configuration_that_names_no_layers_means_those_of_the_authors() -> None:
    published = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "rms_norm_eps": 1e-05,
    }
    shape = HeadShape.read(published, target_layers=32)
    assert shape.feature_layers == (2, 16, 29)
    assert (shape.head_width, shape.target_width, shape.rope_theta) == (128, 4096, 10_000.0)


def test_a_head_that_repeats_the_embedding_is_read(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embed_tokens.weight"] = torch.zeros(SHAPE.vocab_tokens, SHAPE.width)
    save_file(weights, folder / "model.safetensors")
    assert EagleHead.load(folder, target_layers=2).shape == SHAPE


@pytest.mark.parametrize("changed", [{"hidden_size": "wide"}, {"intermediate_size": None}, {"hidden_size": 32}])
def test_a_head_that_does_not_fit_its_configuration_is_refused(folder: Path, changed: dict[str, object]) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changed), "utf-8")
    with pytest.raises(UsageError):
        EagleHead.load(folder, target_layers=2)


def test_a_folder_without_a_head_is_refused(tmp_path: Path) -> None:
    assert not is_eagle_head(tmp_path)
    with pytest.raises(UsageError, match="no EAGLE-3 head"):
        EagleHead.load(tmp_path, target_layers=2)


@pytest.mark.parametrize(
    ("layers", "width", "tokens"),
    [
        (1, SHAPE.width, SHAPE.vocab_tokens),
        (2, 32, SHAPE.vocab_tokens),
        (2, SHAPE.width, SHAPE.vocab_tokens + 1),
    ],
)
def test_a_head_of_another_target_is_refused(layers: int, width: int, tokens: int) -> None:
    with pytest.raises(UsageError, match="head"):
        SHAPE.check(target_layers=layers, width=width, tokens=tokens)
