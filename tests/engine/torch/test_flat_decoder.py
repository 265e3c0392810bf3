"""The flat decoder computes the same as its modules, and so do passes in fixed shapes."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.base import Row
from cosine_engine.compiled import layers
from cosine_engine.compiled.model import CompiledModel
from cosine_engine.forward.flat_decoder import FlatDecoder
from cosine_engine.forward.packed_model import PackedModel
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.forward.row_tiles import Padding
from cosine_engine.torch.load_self_test import check_exactness, find_way
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.engine.engines import held
from tests.engine.tiny_models import FLAT, FLAT_SIZES, VOCAB, WINDOWED, build, tiny_llama
from tests.thoroughness import quick_first

OTHERS = {
    "gemma2": lambda: tf.Gemma2Config(**FLAT_SIZES, head_dim=16),
    "gpt2": lambda: tf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4),
    "mixtral": lambda: tf.MixtralConfig(**FLAT_SIZES, num_local_experts=4),
    "llama with another activation": lambda: tf.LlamaConfig(**FLAT_SIZES, hidden_act="gelu"),
}


@pytest.mark.parametrize("make", FLAT.values(), ids=FLAT)
def test_known_models_are_flattened_and_stay_exact(make: Any) -> None:
    model = build(make())
    assert FlatDecoder.of(model) is not None
    check_exactness(model)


COMPILED = FLAT | {"gemma3": WINDOWED["Gemma3"]}


@pytest.mark.parametrize("quantize", quick_first(["int4", "int8", "float16"]))
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_known_models_with_converted_weights_are_compiled_and_have_the_same_bits_in_every_pass(
    make: Any, quantize: str
) -> None:
    model = held(build(make()), quantize)
    assert find_way(model) is PassWay.COMPILED


@pytest.mark.parametrize("quantize", ["int4", "float16"])
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_the_bits_do_not_depend_on_the_number_of_threads(
    kind: str, quantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = held(build(COMPILED[kind]()), quantize)

    def logits() -> torch.Tensor:
        return torch.cat([_pass(CompiledModel(model, slots=400), lengths) for lengths in ([20, 33, 5], [130])])

    alone = logits()
    monkeypatch.setattr(layers, "threads_for", lambda weights, most: 3)
    assert torch.equal(logits(), alone)


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_models_are_left_as_they_are(make: Any) -> None:
    assert FlatDecoder.of(build(make())) is None


def test_a_replaced_projection_is_no_known_model() -> None:
    model = tiny_llama()
    model.model.layers[1].mlp.up_proj = type("Wrapped", (torch.nn.Linear,), {})(1, 1)
    assert FlatDecoder.of(model) is None


def _pass(packed: PassModel, contexts: list[int]) -> torch.Tensor:
    """Run a pass of one token after contexts of some lengths."""
    feeds, slot = [], 0
    for number, length in enumerate(contexts):
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
        for tokens in ((7,) * length, (number + 3,)):
            row = Row.chain(number, tokens)
            tree.add(row, range(slot, slot + len(tokens)))
            slot += len(tokens)
            if len(tokens) == length:
                packed.logits([(tree, row)], wanted=[length - 1])
                tree.keep(row.nodes)
        feeds.append((tree, row))
    return packed.logits(feeds, wanted=[len(contexts) - 1])


def test_features_of_padded_passes_lie_in_the_slots_of_their_tokens() -> None:
    padded, in_place = (
        PackedModel(tiny_llama(), slots=400, padding=Padding(to_rectangle=pads_rows), feature_layers=(0, 1, 2))
        for pads_rows in (True, False)
    )
    for contexts in ([20, 33, 5], [2, 3, 4, 60], [50, 2, 90], [9]):
        _pass(padded, contexts)
        _pass(in_place, contexts)
        fed = range(sum(contexts))
        torch.testing.assert_close(padded.features.of(fed).read(), in_place.features.of(fed).read())
