"""Reading a model of transformers without torch."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cosine_node import zoo
from cosine_node.gguf.writing import StoredModel
from cosine_protocol.errors import UsageError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_those_that_torch_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.randn(3, 5).to(dtype), "b": torch.randn(2).to(dtype)}, tmp_path / "model.safetensors")
    read = StoredModel.read(tmp_path).weights()
    stored = load_file(tmp_path / "model.safetensors")
    assert read.keys() == stored.keys()
    for name, values in read.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, stored[name].float().numpy())


def test_a_chat_template_is_found_in_its_file_or_in_the_tokenizers_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = StoredModel.read(tmp_path)
    assert model.chat_template() is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "one"}')
    assert model.chat_template() == "one"
    (tmp_path / "chat_template.jinja").write_text("two")
    assert model.chat_template() == "two"


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it has no config\.json"):
        StoredModel.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UsageError, match=r"config\.json holds no JSON object"):
        StoredModel.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json cannot be read"):
        StoredModel.read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"it has no \*\.safetensors files"):
        StoredModel.read(tmp_path).weights()
    shutil.copy(zoo.folder("draft-code") / "config.json", tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        StoredModel.read(tmp_path).weights()
