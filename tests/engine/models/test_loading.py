"""The choice of the engine, and refusals of its options."""

from dataclasses import replace
from pathlib import Path

import pytest

from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.load_options import EngineKind, LoadOptions, VllmOptions, join_options
from cosine_engine.models import engine_kind
from cosine_engine.models.engine_kind import kind_for
from cosine_engine.models.loading import check_options, load
from cosine_engine.pool_size import PoolSize
from cosine_engine.torch import loading as torch_loading
from cosine_protocol.errors import UsageError
from tests.engine.gguf_architectures import TINY
from tests.engine.gguf_models import tiny_gguf

SMALL = PoolSize(requests=1)
AUTO = LoadOptions(device="cpu", threads=1, pool_size=SMALL)
LLAMA = replace(AUTO, kind=EngineKind.LLAMA)


@pytest.mark.parametrize(
    ("options", "resolved", "kind"),
    [
        (AUTO, tiny_gguf("Q4_1"), EngineKind.TORCH),
        # What is not here yet is looked at once it is.
        (AUTO, "hf:owner/repository/some.gguf", EngineKind.TORCH),
        # float16 does not hold these weights, another device than the CPU does not do so.
        (AUTO, tiny_gguf(), EngineKind.LLAMA),
        (replace(AUTO, device="cuda"), tiny_gguf("Q4_1"), EngineKind.LLAMA),
        (AUTO, Path("/models/damaged.gguf"), EngineKind.LLAMA),
        (AUTO, Path("/models/folder"), EngineKind.TORCH),
        (replace(AUTO, kind=EngineKind.TORCH), Path("/models/some.gguf"), EngineKind.TORCH),
        # Who asks for what only PyTorch can do is given it.
        (replace(AUTO, quantize="int8"), Path("/models/some.gguf"), EngineKind.TORCH),
        (replace(AUTO, is_deterministic=True), Path("/models/some.gguf"), EngineKind.TORCH),
    ],
)
def test_auto_is_torch_for_what_it_can_hold_in_float16(
    monkeypatch: pytest.MonkeyPatch, options: LoadOptions, resolved: Path | str, kind: EngineKind
) -> None:
    monkeypatch.setattr(engine_kind, "reads_float16", lambda: True)
    assert kind_for(options, resolved) is kind


@pytest.mark.parametrize(
    ("what", "value"), [("reads_float16", False), ("has_card", True), ("free_memory_bytes", 100_000)]
)
def test_auto_is_llama_on_a_machine_that_cannot_hold_a_file(
    monkeypatch: pytest.MonkeyPatch, what: str, value: object
) -> None:
    monkeypatch.setattr(engine_kind, "reads_float16", lambda: True)
    monkeypatch.setattr(engine_kind, what, lambda: value)
    assert kind_for(replace(AUTO, device="auto"), tiny_gguf("Q4_1")) is EngineKind.LLAMA


def test_auto_is_llama_for_a_kind_that_torch_is_not_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_kind, "reads_float16", lambda: True)
    for kind, expected in {"qwen2": EngineKind.TORCH, "olmo2": EngineKind.LLAMA}.items():
        tiny = replace(TINY["qwen2"], architecture=kind)
        file = tiny.write(tmp_path / f"{kind}.gguf", matrices="Q4_1")
        assert kind_for(AUTO, file) is expected


def test_a_file_that_torch_refuses_is_loaded_with_llama(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_kind, "reads_float16", lambda: True)
    monkeypatch.setattr(torch_loading, "check_against_llama", refuse)
    files = ModelFiles.in_folder(unfold(tiny_gguf("Q4_1"), cache_folder=tmp_path))
    how = replace(AUTO, is_served=True)
    assert isinstance(load(files, how), LaneEngine)
    with pytest.raises(UsageError, match="other logits"):
        load(files, replace(how, kind=EngineKind.TORCH))


def refuse(*_: object) -> None:
    raise UsageError("It has other logits.")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (replace(LLAMA, dtype="bfloat16"), "--dtype is for --engine torch"),
        (replace(LLAMA, quantize="int8"), "--quantize is for --engine torch"),
        (replace(LLAMA, is_deterministic=True), "--deterministic is for --engine torch"),
        (replace(LLAMA, device="cuda:5"), "has no device 'cuda:5' on this machine"),
    ],
)
def test_options_that_llama_has_not_are_refused(options: LoadOptions, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_options(options, tiny_gguf())


VLLM = LoadOptions(kind=EngineKind.VLLM)


@pytest.mark.parametrize(
    ("options", "resolved", "sentence"),
    [
        (VLLM, tiny_gguf(), "runs Hugging Face folders, no GGUF files"),
        (replace(VLLM, device="cpu"), Path("/models/folder"), "--device is for other engines"),
        (replace(VLLM, quantize="int8"), Path("/models/folder"), "--quantize is for --engine torch"),
        (replace(VLLM, is_deterministic=True), Path("/models/folder"), "--deterministic is for --engine torch"),
        (replace(VLLM, feature_layers=(1,)), Path("/models/folder"), "a draft head reads layers of the target"),
        (replace(VLLM, vllm=VllmOptions(Path("/no/python"))), Path("/models/folder"), "/no/python is missing"),
        (replace(AUTO, vllm=VllmOptions(tensor_parallel=2)), Path("/models/folder"), "are for --engine vllm"),
    ],
)
def test_options_that_vllm_has_not_and_its_own_for_others_are_refused(
    options: LoadOptions, resolved: Path, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_options(options, resolved)


@pytest.mark.parametrize(
    ("numerics", "options"),
    [
        ("float32", "--engine torch --dtype float32"),
        ("bfloat16/int8", "--engine torch --dtype bfloat16 --quantize int8"),
        ("gguf:Q4_1+float32/float16", "--engine torch --dtype float32 --quantize float16"),
        # Weights that the model's own files hold in few bits.
        ("float16/gptq", "--engine torch --dtype float16"),
        ("gguf:Q4_1+llama.cpp", "--engine llama"),
        ("vllm:bfloat16/gptq", "--engine vllm --dtype bfloat16"),
        ("none", ""),
        ("float32; rm -rf /", ""),
    ],
)
def test_numerics_tell_the_options_of_a_node_with_the_same(numerics: str, options: str) -> None:
    assert join_options(numerics) == tuple(options.split())
