import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cosine_lab.experiments.decoding import decoded
from cosine_node.engine.base import PREFIX, OutOfMemory, PassAbandoned, Row
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.pass_way import PassWay
from cosine_protocol.request import Sampling
from tests.node.engine.random_walk import Walk, check_walk
from tests.node.engine.tiny_models import (
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    STEPPED,
    VOCAB,
    WINDOWED,
    build,
    tiny_llama,
)
from tests.thoroughness import quick_first

NEAR_TIE = 1e-4


def _chain(sequence: int, tokens: list[int], **options: Any) -> Row:
    nodes = tuple(range(len(tokens)))
    return Row(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), **options)


@pytest.fixture
def engine() -> TorchEngine:
    return TorchEngine(tiny_llama(), pool_tokens=512)


@pytest.mark.parametrize("make", [*LATENT.values(), *SHARING.values()])
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
@pytest.mark.parametrize("seed", quick_first(range(8)))
def test_random_walks_equal_fresh_forwards(seed: int, make: Callable[[], Any], pads_rows: bool) -> None:
    check_walk(walk_of(seed, make, pads_rows=pads_rows), seed)


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (OWN_ATTENTION["falcon-alibi"], PassWay.CACHED),
        (OWN_ATTENTION["gpt_neo"], PassWay.CACHED),
        (RECURRENT["qwen3_next"], PassWay.CACHED),
        (STEPPED["jamba"], PassWay.STEPPED),
    ],
    ids=["falcon", "gpt_neo", "qwen3_next", "jamba"],
)
@pytest.mark.parametrize("seed", quick_first(range(6)))
def test_random_walks_with_own_attention_equal_fresh_forwards(
    seed: int, make: Callable[[], Any], way: PassWay
) -> None:
    check_walk(walk_of(seed, lambda: build(make()), way=way), seed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("make", [tiny_llama, _windowed_gemma])
@pytest.mark.parametrize("seed", range(8))
def test_random_walks_on_a_gpu_equal_fresh_forwards_on_the_cpu(seed: int, make: Callable[[], Any]) -> None:
    check_walk(walk_of(seed, make, "cuda", pads_rows=True), seed)


def test_a_pass_that_dies_leaves_nothing_behind(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)

    def die(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("cosine_node.engine.torch.packed_model.PackedModel.logits", die)
        with pytest.raises(torch.OutOfMemoryError):
            engine.forward([_chain(sequence, [3, 4])])
    assert engine.free_tokens == 512
    assert len(engine.forward([_chain(sequence, [3, 4])])[0].choices) == 2


def test_sixteen_bit_weights_run() -> None:
    engine = TorchEngine(tiny_llama().to(torch.bfloat16), pool_tokens=128)
    assert engine.numerics == "bfloat16"
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([_chain(sequence, [3, 4, 5])])[0].choices) == 3


def test_a_pass_can_be_abandoned_between_two_layers_and_leaves_nothing_behind() -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)
    before_the_layers = engine._passes.model.model.rotary_emb
    hook = before_the_layers.register_forward_hook(lambda *_: engine.abandon())
    with pytest.raises(PassAbandoned):
        engine.forward([_chain(sequence, [1, 2, 3, 4])])
    assert engine.live_tokens == 0
    hook.remove()
    engine.abandon()
    [result] = engine.forward([_chain(sequence, [1, 2, 3, 4], scored_from=3)])
    assert len(result.choices) == 1


def test_a_device_out_of_memory_is_told_apart_and_leaves_nothing_behind() -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = engine._passes.model.model.rotary_emb.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory):
        engine.forward([_chain(sequence, [1, 2, 3, 4])])
    assert engine.live_tokens == 0
    hook.remove()
    assert engine.forward([_chain(sequence, [1, 2, 3, 4])])[0].error is None
