"""Passes of the engine are exact whatever was fed, kept and pruned before; one that fails leaves nothing behind."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cosine_node.engine.base import BadLogits, OutOfMemory, PassAbandoned, Row
from cosine_node.engine.torch.engine import TorchEngine, row_results
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.decoding import decoded
from tests.node.engine.random_walk import Walk, check_walk
from tests.node.engine.tiny_models import (
    LATENT,
    SHARING,
    VOCAB,
    WINDOWED,
    build,
    tiny_llama,
)
from tests.thoroughness import soak_rest


@pytest.mark.parametrize("make", soak_rest([*SHARING.values(), *LATENT.values()], 3))
def test_greedy_decoding_with_other_attention_equals_generate(make: Callable[[], Any]) -> None:
    prompt = [random.Random(1).randrange(3, VOCAB) for _ in range(10)]
    expected = build(make()).generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )
    [output] = decoded(TorchEngine(build(make()), pool_tokens=512), [prompt], [24])
    assert output.tokens == expected[0, len(prompt) :].tolist()


def walk_of(seed: int, make: Callable[[], Any], device: str = "cpu", **options: Any) -> Walk:
    return Walk(seed, TorchEngine(make().to(device), pool_tokens=1024, **options), make())


def _windowed_gemma() -> Any:
    return build(WINDOWED["Gemma2"]())


def _latent_deepseek() -> Any:
    return build(LATENT["DeepseekV3"]())


@pytest.mark.parametrize("pads_rows", [False, True], ids=["in place", "padded"])
@pytest.mark.parametrize("make", [tiny_llama, _windowed_gemma, _latent_deepseek])
@pytest.mark.parametrize("seed", soak_rest(range(8)))
def test_random_walks_equal_fresh_forwards(seed: int, make: Callable[[], Any], pads_rows: bool) -> None:
    check_walk(walk_of(seed, make, pads_rows=pads_rows), seed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("make", [tiny_llama, _windowed_gemma])
@pytest.mark.parametrize("seed", range(8))
def test_random_walks_on_a_gpu_equal_fresh_forwards_on_the_cpu(seed: int, make: Callable[[], Any]) -> None:
    check_walk(walk_of(seed, make, "cuda", pads_rows=True), seed)


def test_sixteen_bit_weights_run() -> None:
    engine = TorchEngine(tiny_llama().to(torch.bfloat16), pool_tokens=128)
    assert engine.numerics == "bfloat16"
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([Row.chain(sequence, [3, 4, 5])])[0].choices) == 3


@pytest.mark.parametrize(
    "error",
    [
        None,
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to"
        ),
    ],
    ids=["abandoned", "of a card", "of Python", "of PyTorch"],
)
def test_a_pass_that_fails_between_two_layers_leaves_nothing_behind(error: Exception | None) -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)

    def fail(*_: object) -> None:
        if error is not None:
            raise error
        engine.abandon()

    hook = engine._passes.model.model.rotary_emb.register_forward_hook(fail)
    with pytest.raises(PassAbandoned if error is None else OutOfMemory):
        engine.forward([Row.chain(sequence, [1, 2, 3, 4])])
    assert (engine.live_tokens, engine.free_tokens) == (0, 512)
    hook.remove()
    # One that comes late meant an earlier pass.
    engine.abandon()
    [result] = engine.forward([Row.chain(sequence, [1, 2, 3, 4], scored_from=3)])
    assert len(result.choices) == 1


def test_only_what_rows_ask_for_is_computed_and_a_row_that_fails_fails_alone() -> None:
    rows = [
        Row.chain(0, (1, 2, 3), scored_from=2),
        Row.chain(1, (4, 5), scored_from=2),
        Row(2, (1, 2, 3), (0, 1, 2), (-1, 0, 1), scored_from=2, wants_nll=True),
        Row.chain(3, (6,)),
    ]
    feeds = [(SequenceTree(sampling=Sampling(), prompt_tokens=0), row) for row in rows]
    for tree, row in feeds:
        tree.add(row, range(len(row.tokens)))
    asked, vocab = [], 7

    def logits_of(wanted: list[int]) -> torch.Tensor:
        asked.extend(wanted)
        # The best token after a position of the pass is its number modulo the vocabulary.
        logits = torch.nn.functional.one_hot(torch.tensor(wanted) % vocab, vocab).float()
        logits[-1] = torch.nan
        return logits

    results = row_results(feeds, logits_of)
    assert asked == [2, 5, 6, 7, 8]
    assert [[choice.token for choice in result.choices] for result in results] == [[2], [], [7 % vocab], []]
    expected = torch.nn.functional.cross_entropy(torch.eye(vocab)[[5, 6]], torch.tensor([2, 3]))
    assert results[2].nll is not None
    assert abs(results[2].nll - float(expected)) < 1e-6
    assert [type(result.error) for result in results] == [type(None)] * 3 + [BadLogits]
