"""Passes of the engine are exact after any feeding, keeping and pruning; a failed one leaves nothing behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cosine_engine.base import OutOfMemory, PassAbandoned, Row
from cosine_engine.compiled import layers
from cosine_engine.forward.row_tiles import Padding
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.pass_way import PassWay
from cosine_protocol.request import Sampling
from tests.engine.engines import held
from tests.engine.random_walk import Walk, check_walk
from tests.engine.tiny_models import WINDOWED, build, tiny_llama


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("make", [tiny_llama, lambda: build(WINDOWED["Gemma2"]())], ids=["Llama", "Gemma2"])
@pytest.mark.parametrize("seed", range(8))
def test_random_walks_on_a_gpu_equal_fresh_forwards_on_the_cpu(seed: int, make: Callable[[], Any]) -> None:
    engine = TorchEngine(make().to("cuda"), pool_tokens=1024, padding=Padding(to_rectangle=True))
    check_walk(Walk(seed, engine, make()), seed)


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
@pytest.mark.parametrize("is_compiled", [False, True], ids=["modules", "compiled"])
def test_a_pass_that_fails_between_two_layers_leaves_nothing_behind(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, *, is_compiled: bool
) -> None:
    monkeypatch.setattr(layers, "threads_for", lambda weights, most: 2)
    model = held(tiny_llama(), "int8") if is_compiled else tiny_llama()
    engine = TorchEngine(model, pool_tokens=512, way=PassWay.COMPILED if is_compiled else PassWay.PACKED)
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
    # A late call is for an earlier pass.
    engine.abandon()
    [result] = engine.forward([Row.chain(sequence, [1, 2, 3, 4], scored_from=3)])
    assert len(result.choices) == 1
