"""The layers that a volunteer's stage holds, and the pool beside them, follow from memory and what others hold."""

from pathlib import Path

import pytest
import transformers as tf

from cosine_node.models.engine_kind import EngineChoice
from cosine_node.stages.opening import StageDraft, StageSource
from cosine_protocol.errors import UsageError
from tests.node.engine.staged import ranges
from tests.node.engine.tiny_models import COMMON, build

LAYERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build(tf.LlamaConfig(**(COMMON | {"num_hidden_layers": LAYERS}))).save_pretrained(folder)
    return folder


def draft(folder: Path, *, layers: str = "auto", memory: str = "1GiB") -> StageDraft:
    engine = EngineChoice(device="cpu", dtype="float32", threads=1)
    return StageDraft(
        StageSource(model="tiny", target="tiny", layers=layers, engine=engine, memory=memory, requests=2), folder
    )


def test_named_layers_are_held_whatever_others_hold(folder: Path) -> None:
    made = draft(folder, layers="1:3")
    assert str(made.choose(ranges(1, 3, LAYERS))) == str(made.named) == "1:3"


@pytest.mark.parametrize("layers", ["3:1", "0:5", "2", "a:b", "-1:2"])
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
    assert str(whole.choose(ranges(2, LAYERS)[:1])) == "2:4"
    first_two = whole.sizes.of(ranges(2, LAYERS)[0])
    small = draft(folder, memory=f"{int(first_two / 0.75) + 1}B")
    assert str(small.choose([])) == "0:2"


def test_a_loaded_part_is_measured_and_has_a_pool_within_its_memory(folder: Path) -> None:
    made = draft(folder, layers="1:3", memory="1MB")
    assert made.named is not None
    loaded = made.load(made.named, measure_s=0.1)
    assert loaded.model.layers == made.named and loaded.model.numerics == made.numerics == "float32"
    assert loaded.curve.seconds(1) > 0
    assert loaded.model.weights_bytes + loaded.model.pool_bytes <= 1_000_000
    # One request of usual length fills the context.
    assert loaded.model.slots >= 256
    # With memory enough there is room for two heads, each with two requests that fill the context.
    assert draft(folder, layers="1:3")._pool_tokens(made.named, 1024) == 4 * 256


def test_a_part_without_room_for_a_request_is_told(folder: Path) -> None:
    made = draft(folder, layers="1:3", memory="400KB")
    assert made.named is not None
    with pytest.raises(UsageError, match="Beside layers 1:3 there is room for the keys and values of"):
        made.load(made.named, measure_s=0.1)
