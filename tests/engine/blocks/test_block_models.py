"""Models with matrices in the blocks of their GGUF file equal models with their dequantised weights."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from cosine_engine.blocks.matrix import BlockMatrix
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.torch.loading import STORED, StoredBlocks, load_gguf_model, read_config
from cosine_protocol.errors import UsageError
from tests.engine.gguf_architectures import TINY, VOCAB
from tests.engine.gguf_models import tiny_folder, tiny_gguf
from tests.engine.loaded import torch_engine
from tests.thoroughness import THOROUGH

TEXT: Final = [3 + 7 * place * place % (VOCAB - 3) for place in range(40)]
QUICK: Final = ("llama", "gemma3", "qwen3moe")


def file_of(name: str, tmp_path: Path) -> tuple[GgufFile, str]:
    """Return a tiny file of an architecture, its matrices in Q8_0, and its folder."""
    file = TINY[name].write(tmp_path / "a.gguf", matrices="Q8_0")
    folder = unfold(file, cache_folder=tmp_path / "cache")
    found = GgufFile.in_folder(folder)
    assert found is not None
    return found, str(folder)


def held_bytes(model: Any) -> int:
    return sum(module.planes.nbytes for module in model.modules() if isinstance(module, BlockMatrix))


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=THOROUGH) for name in TINY])
def test_every_architecture_has_the_logits_of_its_dequantised_weights(name: str, tmp_path: Path) -> None:
    file, folder = file_of(name, tmp_path)
    config = read_config(folder)
    dense, in_blocks = (
        load_gguf_model(file, read_config(folder), dtype=torch.float32, blocks=blocks, attn_implementation="eager")
        for blocks in (StoredBlocks.NONE, StoredBlocks.ALL)
    )
    assert type(in_blocks).__name__ == type(dense).__name__
    assert held_bytes(in_blocks) > 0
    assert held_bytes(dense) == 0
    with torch.inference_mode():
        expected, found = (model.eval()(torch.tensor([TEXT])).logits[0] for model in (dense, in_blocks))
    # 4e-6 of the deviation of logits was measured at most with two layers.
    apart = (found - expected).abs().max() / expected.std()
    assert apart < 1e-5 * config.get_text_config().num_hidden_layers


def test_no_matrix_takes_more_than_in_the_file(tmp_path: Path) -> None:
    folder = str(unfold(tiny_gguf("Q4_1"), cache_folder=tmp_path))
    engine = torch_engine(folder, quantize=STORED)
    file = GgufFile.open(tiny_gguf("Q4_1"))
    stored = sum(tensor.size_bytes for tensor in file.tensors.values() if tensor.kind == "Q4_1")
    model = engine.model
    assert held_bytes(model) == stored
    assert not any(weight.ndim > 1 for weight in model.parameters())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_passes_may_be_deterministic(name: str, tmp_path: Path) -> None:
    _, folder = file_of(name, tmp_path)
    engine = torch_engine(folder, quantize=STORED, pool_tokens=64, is_deterministic=True)
    assert held_bytes(engine.model) > 0


def test_what_is_no_gguf_file_is_refused_in_a_sentence() -> None:
    tiny_gguf()
    with pytest.raises(UsageError, match="--quantize stored requires a GGUF file"):
        torch_engine(tiny_folder(), quantize=STORED)


def test_a_draft_head_needs_numbers(tmp_path: Path) -> None:
    folder = str(unfold(tiny_gguf("Q8_0"), cache_folder=tmp_path))
    with pytest.raises(UsageError, match="needs its target's embedding"):
        torch_engine(folder, quantize=STORED, pool_tokens=64, feature_layers=(1,))
