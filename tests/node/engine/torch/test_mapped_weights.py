"""Memory holds each weight once: what shares a file with weights that were replaced is copied out of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cosine_node.engine.torch.flat_decoder import FlatDecoder
from cosine_node.engine.torch.loading import load_engine
from cosine_node.engine.torch.partial_model import copy_out_of_files
from tests.node.engine.surveyed_models import tiny_configs
from tests.node.engine.tiny_models import ARCHITECTURES, build

MAKES = ARCHITECTURES | {"DeepseekV3": lambda: tiny_configs("deepseek_v3")[0]}


def weights_in_files(model: Any) -> set[str]:
    """The names of weights whose memory PyTorch has not allocated itself."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name for name, weight in weights.items() if not weight.untyped_storage().resizable()}


def loaded(name: str, folder: Path) -> Any:
    build(MAKES[name]()).save_pretrained(folder)
    return load_engine(str(folder), dtype="float32", pool_tokens=512)._passes.model


def test_where_projections_are_joined_nothing_is_left_in_the_file(tmp_path: Path) -> None:
    model = loaded("Llama", tmp_path)
    assert FlatDecoder.of(model) is not None
    assert weights_in_files(model) == set()


def test_a_model_that_uses_its_weights_as_they_are_leaves_them_in_the_file(tmp_path: Path) -> None:
    model = loaded("Gemma2", tmp_path)
    assert weights_in_files(model) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("name", ["Mixtral", "DeepseekV3"])
def test_experts_that_are_joined_when_they_are_read_take_the_others_with_them(name: str, tmp_path: Path) -> None:
    assert weights_in_files(loaded(name, tmp_path)) == set()


@pytest.mark.parametrize(("count", "is_copied"), [(1, False), (2, True)])
def test_a_small_part_may_be_held_twice(count: int, is_copied: bool) -> None:
    model = torch.nn.ParameterList(
        torch.nn.Parameter(torch.frombuffer(bytearray(4 * 64), dtype=torch.float32)) for _ in range(30)
    )
    copy_out_of_files(model, but=list(model)[:count])
    assert weights_in_files(model) == {str(number) for number in range(count if is_copied else 30)}
