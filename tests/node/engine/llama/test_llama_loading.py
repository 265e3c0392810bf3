import gc
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosine_node.engine.base import Row
from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.loading import default_threads, find_device, load_llama
from cosine_node.engine.pool_size import PoolSize
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.engine.gguf_models import tiny_gguf


@pytest.mark.parametrize("weights", ["F32", "Q8_0"])
def test_a_file_is_served_as_it_is(weights: str) -> None:
    engine = load_llama(tiny_gguf(weights), device="cpu", pool_tokens=512)
    assert engine.numerics == f"gguf:{weights}+llama.cpp"
    assert (engine.free_tokens, engine.context_tokens) == (512, 256)
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([Row.chain(sequence, [3, 4, 5])])[0].choices) == 3


def test_the_cache_takes_what_memory_was_given_to_it() -> None:
    # 512 bytes a token.
    engine = load_llama(tiny_gguf(), device="cpu", pool_tokens=PoolSize(size_bytes=300 * 512))
    assert engine.free_tokens == 304
    with pytest.raises(UsageError, match="The KV cache would hold 100 tokens, at 512 bytes each"):
        load_llama(tiny_gguf(), device="cpu", pool_tokens=PoolSize(size_bytes=100 * 512))


def test_a_pool_smaller_than_the_self_test_serves_what_it_holds() -> None:
    assert load_llama(tiny_gguf(), device="cpu", pool_tokens=64).free_tokens == 64


def test_the_memory_goes_with_the_engine() -> None:
    engine = load_llama(tiny_gguf(), device="cpu", pool_tokens=64)
    context: Any = engine._model
    assert context._handle and context.model.handle
    del engine
    gc.collect()
    assert (context._handle, context.model.handle) == (None, None)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            "llama_model_is_recurrent",
            "Models of the kind 'llama' cannot be used",
        ),
        ("llama_model_is_hybrid", "they keep a recurrent state"),
        ("llama_model_has_encoder", "is no model that generates token after token"),
    ],
)
def test_kinds_that_no_token_tree_suits_are_refused(
    function: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_library().c, function, lambda _: True)
    with pytest.raises(UsageError, match=sentence):
        load_llama(tiny_gguf(), device="cpu", pool_tokens=64)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "half.gguf").write_bytes(tiny_gguf().read_bytes()[:-4000])
    with pytest.raises(UsageError, match=r"half\.gguf"):
        load_llama(tmp_path / "half.gguf", device="cpu")


def test_devices_are_found_by_the_names_that_users_give() -> None:
    cards: Any = SimpleNamespace(devices=lambda: {"cuda0": 7, "cuda1": 8, "mtl0": 9})
    none: Any = SimpleNamespace(devices=dict)
    assert [find_device(cards, name) for name in ("auto", "cpu", "cuda", "cuda:1", "metal", "mps")] == [
        7,
        None,
        7,
        8,
        9,
        9,
    ]
    assert [find_device(none, name) for name in ("auto", "cpu")] == [None, None]
    for library, name in [(none, "cuda"), (cards, "cuda:2"), (cards, "vulkan")]:
        with pytest.raises(UsageError, match=f"has no device '{name}' on this machine; it has cpu"):
            find_device(library, name)
    for name in ("tpu", "cuda:x", ""):
        with pytest.raises(UsageError, match=r"is no device of llama\.cpp"):
            find_device(cards, name)


def test_small_models_leave_the_machine_to_others() -> None:
    assert default_threads(1000) == 1
    assert default_threads(10**9) == len(os.sched_getaffinity(0))
