"""The flat decoder computes what the modules it was made of compute, and so do passes in fixed shapes."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.base import Row
from cosine_node.engine.torch.cuda_graphs import TRIED_PASSES, CaptureTrial
from cosine_node.engine.torch.flat_decoder import FlatDecoder
from cosine_node.engine.torch.load_self_test import check_exactness
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import FLAT, FLAT_SIZES, VOCAB, build, tiny_llama

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


@pytest.mark.parametrize("inner", [96, 128], ids=["back to rows", "columns throughout"])
@pytest.mark.parametrize("has_biases", [False, True])
def test_models_in_16_bits_multiply_by_columns_and_stay_exact(inner: int, has_biases: bool) -> None:
    sizes = {**FLAT_SIZES, "intermediate_size": inner}
    model = build(tf.LlamaConfig(**sizes, attention_bias=has_biases, mlp_bias=has_biases)).to(torch.bfloat16)
    check_exactness(model)


@pytest.mark.parametrize("rows", [1, 16, 17, 30, 47, 48, 200])
def test_a_row_comes_out_as_among_any_number(rows: int) -> None:
    flat = FlatDecoder.of(build(tf.LlamaConfig(**{**FLAT_SIZES, "intermediate_size": 128})).to(torch.bfloat16))
    assert flat is not None
    for kernel in flat.kernels():
        noise = torch.randn(200, kernel.width, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
        output = kernel.compute(noise[:rows])
        assert output.is_contiguous()
        torch.testing.assert_close(output, kernel.compute(noise)[:rows])


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_models_are_left_as_they_are(make: Any) -> None:
    assert FlatDecoder.of(build(make())) is None


def test_a_replaced_projection_is_no_known_model() -> None:
    model = tiny_llama()
    model.model.layers[1].mlp.up_proj = type("Wrapped", (torch.nn.Linear,), {})(1, 1)
    assert FlatDecoder.of(model) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_stays_usable_and_no_weight_is_held_twice(dtype: torch.dtype) -> None:
    model, tokens = tiny_llama().to(dtype), torch.tensor([[3, 5, 8, 13]])
    with torch.inference_mode():
        before = model(input_ids=tokens).logits
        assert FlatDecoder.of(model) is not None
        torch.testing.assert_close(model(input_ids=tokens).logits, before)
    attention = model.model.layers[0].self_attn
    storages = {
        p.weight.untyped_storage().data_ptr() for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert len(storages) == 1


def test_a_model_that_was_joined_is_not_copied_again_but_where_a_weight_was_replaced() -> None:
    model, tokens = tiny_llama(), torch.tensor([[3, 5, 8, 13]])

    def places() -> list[int]:
        first, second = (layer.self_attn.k_proj.weight for layer in model.model.layers[:2])
        return [first.data_ptr(), second.data_ptr()]

    with torch.inference_mode():
        assert FlatDecoder.of(model) is not None
        joined = places()
        replaced = model.model.layers[1].self_attn.k_proj
        replaced.weight = torch.nn.Parameter(replaced.weight.detach() * 2, requires_grad=False)
        expected = model(input_ids=tokens).logits
        check_exactness(model)
        assert places()[0] == joined[0]
        assert places()[1] != joined[1]
        model.set_attn_implementation("eager")
        torch.testing.assert_close(model(input_ids=tokens).logits, expected)


def _pass(packed: PackedModel, contexts: list[int]) -> torch.Tensor:
    """A pass of one token after contexts of some lengths."""
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


def trial_of(*, captured_s: float, uncaptured_s: float) -> CaptureTrial:
    """A trial that is over: passes took so long, and the first of each way, which warms it up, longer."""
    trial = CaptureTrial()
    for passes in range(2 * (1 + TRIED_PASSES)):
        assert not trial.is_over
        seconds = captured_s if trial.is_captured else uncaptured_s
        trial.note(seconds if passes >= 2 else 10.0 * seconds)
    assert trial.is_over
    return trial


@pytest.mark.parametrize(("captured_s", "uncaptured_s"), [(1.0, 2.0), (2.0, 1.0), (0.2, 1.0), (5.0, 1.0)])
def test_of_captured_passes_and_others_those_stay_that_are_sooner_over(
    captured_s: float, uncaptured_s: float
) -> None:
    trial = trial_of(captured_s=captured_s, uncaptured_s=uncaptured_s)
    assert trial.is_captured is (captured_s < uncaptured_s)


def test_one_pass_that_was_disturbed_decides_nothing() -> None:
    trial = CaptureTrial()
    for _ in range(2 * (1 + TRIED_PASSES) - 2):
        trial.note(1.0 if trial.is_captured else 2.0)
    assert trial.is_captured
    trial.note(50.0)
    trial.note(2.0)
    assert trial.is_over and trial.is_captured


def test_one_shape_serves_passes_of_other_sizes_after_each_other() -> None:
    padded, in_place = (PackedModel(tiny_llama(), slots=400, pads_rows=pads_rows) for pads_rows in (True, False))
    for contexts in ([20, 33, 5], [2, 3, 4, 60], [50, 2, 90], [9]):
        torch.testing.assert_close(_pass(padded, contexts), _pass(in_place, contexts))


def test_features_of_padded_passes_lie_in_the_slots_of_their_tokens() -> None:
    padded, in_place = (
        PackedModel(tiny_llama(), slots=400, pads_rows=pads_rows, feature_layers=(0, 1, 2))
        for pads_rows in (True, False)
    )
    for contexts in ([20, 33, 5], [2, 3, 4, 60], [50, 2, 90], [9]):
        _pass(padded, contexts)
        _pass(in_place, contexts)
        fed = range(sum(contexts))
        torch.testing.assert_close(padded.activations(fed).read(), in_place.activations(fed).read())
