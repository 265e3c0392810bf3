"""A GGUF file in parts: matrices stay in blocks, and chains equal the whole file bit by bit."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import torch
from torch.overrides import TorchFunctionMode

from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.load_options import LoadOptions
from cosine_engine.torch.loading import read_config
from cosine_node.stages.host import load_part, wanted_tensors
from cosine_node.stages.opening import StageDraft, part_sizes
from cosine_protocol.request import Sampling
from cosine_protocol.stage import LayerRange
from tests.engine.gguf_architectures import TINY
from tests.engine.random_serving import Asked, serve_alone
from tests.engine.staged import in_step, ranges
from tests.engine.tiny_models import HELD
from tests.thoroughness import quick_first

CUT: Final = ("llama", "gemma3", "qwen3", "phi3", "qwen3moe", "gpt-oss")
"""Architectures that differ in the parts beside layers, in windows and in experts."""


def folder_of(name: str, tmp_path: Path, *, matrices: str = "Q8_0") -> Path:
    file = TINY[name].write(tmp_path / "a.gguf", matrices=matrices)
    return unfold(file, cache_folder=tmp_path / "cache")


def cuts_of(folder: Path) -> list[Sequence[LayerRange]]:
    """Two ways to cut a model: in two, and at every layer."""
    layers = read_config(str(folder)).get_text_config().num_hidden_layers
    return [ranges(1, layers), ranges(*range(1, layers + 1))]


@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@pytest.mark.parametrize("name", quick_first(CUT, 1, 3))
def test_chains_say_to_the_last_bit_what_the_whole_file_says(name: str, temperature: float, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    engine = in_step(folder, *cuts_of(folder), pool_tokens=128)
    assert engine.numerics == "gguf:Q8_0+float32"
    sampling = Sampling(temperature=temperature, seed=5)
    for length in (3, 40):
        prompt = [Random(length).randrange(3, 200) for _ in range(length)]
        assert len(serve_alone(engine, Asked(prompt, sampling), 16)) == 16


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe"])
def test_parts_take_what_was_foretold_and_read_their_own_tensors_alone(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    sizes = part_sizes(read_config(str(folder)), dtype=torch.float32, file=file)
    layers = sizes.layers
    wanted_of = {}
    for part in ranges(1, layers):
        is_wanted = wanted_tensors(str(folder), part)
        wanted_of[part] = {tensor for tensor in file.tensors if is_wanted(tensor)}
        numbers = {int(tensor.split(".")[1]) for tensor in wanted_of[part] if tensor.startswith("blk.")}
        assert numbers == set(range(part.first, part.end))
        model = load_part(str(folder), part, dtype=torch.float32)
        held = {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
        assert sizes.of(part) <= sum(held.values()) <= 1.02 * sizes.of(part) + 4096
    assert set().union(*wanted_of.values()) == file.tensors.keys()


class AllocatedHere(TorchFunctionMode):
    """Counts the bytes of tensors that are made on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.device.type == "cpu":
            self.size_bytes += found.nbytes
        return found


def test_the_sizes_of_a_model_that_is_larger_than_memory_take_none(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    file = GgufFile.in_folder(folder)
    assert file is not None
    config = read_config(str(folder))
    with AllocatedHere() as here:
        sizes = part_sizes(config, dtype=torch.float32, file=file)
    whole = LayerRange.whole(sizes.layers)
    assert here.size_bytes < sizes.of(whole) / 10


NEEDS_HALF: Final = pytest.mark.skipif(not HELD, reason="This processor has no products with weights in float16.")


@pytest.mark.parametrize(
    ("layers", "quantize", "memory", "held"),
    [
        ("0:1", None, "1GiB", "/int4"),
        ("auto", None, "1GiB", "/int4"),
        ("0:1", "stored", "1GiB", ""),
        pytest.param("auto", "float16", "205KB", HELD, marks=NEEDS_HALF),
    ],
)
def test_a_stage_unpacks_what_it_has_memory_for_and_announces_it(
    layers: str, quantize: str | None, memory: str, held: str, tmp_path: Path
) -> None:
    folder = folder_of("llama", tmp_path, matrices="Q4_1")
    choice = LoadOptions(device="cpu", quantize=quantize)
    draft = StageDraft(folder, "m", choice, layers=layers, memory=memory, requests=1)
    assert draft.numerics == f"gguf:Q4_1+float32{held}"
    part = draft.choose([])
    loaded = draft.load(part, measure_s=0.01)
    assert loaded.model.numerics == draft.numerics
    assert draft.sizes.of(part) <= loaded.model.weights_bytes <= 1.02 * draft.sizes.of(part) + 4096
