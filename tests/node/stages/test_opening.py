"""The layers and pool of a stage follow from its memory and the layers that others hold."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.load_options import LoadOptions
from cosine_engine.torch.loading import read_config
from cosine_node.stages import opening
from cosine_node.stages.host import load_part
from cosine_node.stages.opening import StageDraft, part_sizes
from cosine_protocol.errors import UsageError
from cosine_protocol.stage import LayerRange
from tests.engine.staged import ranges
from tests.engine.tiny_models import VOCAB, build, pool_bytes
from tests.node.stages.chains import FOUR
from tests.thoroughness import soak_rest


def draft(folder: Path, *, layers: str = "auto", memory: str = "1GiB") -> StageDraft:
    engine = LoadOptions(device="cpu", dtype="float32", threads=1)
    return StageDraft(folder, "tiny", engine, layers=layers, memory=memory, requests=2)


@pytest.mark.parametrize("layers", ["3:1", "0:5", "2", "-1:2"])
def test_layers_that_are_none_of_the_model_are_told_in_one_sentence(folder: Path, layers: str) -> None:
    with pytest.raises(UsageError, match=r"^'.*' names no layers of a model of 4; write .*\.$"):
        draft(folder, layers=layers)


def test_layers_that_do_not_fit_are_told_before_they_are_read(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"Layers 0:4 of 4 take .* MiB of weights, and 0\.1 MiB are allowed"):
        draft(folder, layers="0:4", memory="100KB")
    with pytest.raises(UsageError, match="Not even one layer of tiny fits into"):
        draft(folder, memory="100KB").choose([])
    with pytest.raises(UsageError, match="--memory takes a size"):
        draft(folder, memory="much")


def test_auto_takes_what_the_swarm_lacks_as_far_as_it_fits(folder: Path) -> None:
    whole = draft(folder)
    assert str(whole.choose([])) == "0:4"
    assert str(whole.choose(ranges(2, 4)[:1])) == "2:4"
    first_two = whole.sizes.of(ranges(2, 4)[0])
    # Keys and values of two heads of width 16 in two layers.
    request = 256 * 2 * (2 * 2 * 16 * 4)
    small = draft(folder, memory=f"{max(int(first_two / 0.75) + 1, first_two + request)}B")
    chosen = small.choose([])
    assert str(chosen) == "0:2"
    assert small.load(chosen, measure_s=0.01).model.slots >= 256


def test_a_loaded_part_is_measured_and_has_a_pool_within_its_memory(folder: Path) -> None:
    made = draft(folder, layers="1:3", memory="1MB")
    assert made.named is not None
    loaded = made.load(made.named, measure_s=0.1)
    assert loaded.model.layers == made.named and loaded.model.numerics == made.numerics == "float32"
    assert loaded.curve.seconds(1) > 0
    assert loaded.model.weights_bytes + pool_bytes(loaded.model.packed.store) <= 1_000_000
    # One request of usual length fills the context.
    assert loaded.model.slots >= 256
    # With enough memory there is room for two heads with two requests each.
    assert draft(folder, layers="1:3")._pool_tokens(made.named, 1024) == 4 * 256


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError(), RuntimeError("[enforce fail] can't allocate memory: you tried to")],
    ids=lambda error: type(error).__name__,
)
def test_a_part_for_which_the_system_gives_no_memory_is_told_in_one_sentence(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(opening, "load_part", load)
    made = draft(folder, layers="1:3")
    assert made.named is not None
    with pytest.raises(UsageError, match="Layers 1:3 and their KV cache do not fit into the memory of cpu; hold"):
        made.load(made.named, measure_s=0.1)


TINY: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**FOUR),
    "llama-tied": lambda: tf.LlamaConfig(**FOUR, tie_word_embeddings=True),
    "gpt2-tied": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    ),
}


@pytest.mark.parametrize("name", soak_rest(TINY, 2))
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
