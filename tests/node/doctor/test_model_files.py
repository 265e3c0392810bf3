"""A model's files as the doctor reads them, and the memory that it would take, of llama.cpp too."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_node import zoo
from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import EngineFacts
from cosine_node.doctor.model_files import (
    ModelFiles,
    ModelMemory,
    estimate_memory,
    judge_memory,
    judge_model,
    look_at_llama,
    read_folder,
    read_model,
)
from cosine_node.engine.llama import library as llama_library
from cosine_node.engine.pool_size import PoolSize, TokenBytes
from cosine_node.gguf.writing import write_gguf
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from tests.node.engine.gguf_models import changed_gguf, gguf_with_tower, tiny_gguf

GIB = 1 << 30
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
CONTEXT_TOKENS = 512
TOKEN = TokenBytes(1024)
HERE = ModelFiles(
    source="m",
    folder=Path("m"),
    config=LLAMA,
    weight_bytes=2000,
    parameters=1000,
)
POOL = PoolSize(requests=4)


def test_an_embedded_model_is_whole() -> None:
    files = read_model("zoo:target")
    assert judge_model(files, is_verifier=True).status is CheckStatus.OK
    tokenizer = TokenizerFiles.read(zoo.tokenizer_folder())
    assert tokenizer is not None
    assert (files.tokenizer_digest, files.weight_bytes > files.parameters) == (tokenizer.digest.hex(), True)


def test_a_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(zoo.folder("target"), tmp_path / "target.gguf", weights="Q4_1")
    files, own = read_model(str(tmp_path / "target.gguf")), read_model("zoo:target")
    assert judge_model(files, is_verifier=True).status is CheckStatus.OK
    assert files.weight_bytes == (tmp_path / "target.gguf").stat().st_size
    assert files.parameters == own.parameters
    assert files.config["num_hidden_layers"] == own.config["num_hidden_layers"]
    (tmp_path / "target.gguf").write_bytes(b"GGUF\x03")
    found = judge_model(read_model(str(tmp_path / "target.gguf")), is_verifier=True)
    assert (found.status, "damaged GGUF file" in found.found) == (CheckStatus.FAILURE, True)


def test_a_verifier_needs_a_tokenizer() -> None:
    drafter = read_model("zoo:draft-code")
    assert judge_model(drafter, is_verifier=False).status is CheckStatus.OK
    found = judge_model(drafter, is_verifier=True)
    assert (found.status, "no tokenizer" in found.found) == (CheckStatus.FAILURE, True)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "cannot be read"),
        ("config.json", "[]", "no object"),
        ("model.safetensors", "short", "damaged"),
        ("model.safetensors", "\xff" * 64, "damaged"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "model-00002.safetensors"}}', "(1 of 1 files)"),
        ("model.safetensors.index.json", "[]", "index of weights"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, name: str, content: str | None, part: str) -> None:
    folder = Path(shutil.copytree(zoo.folder("draft-code"), tmp_path / "model"))
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode("latin-1"))
    found = judge_model(read_folder("mine", folder), is_verifier=False)
    assert (found.status, part in found.found) == (CheckStatus.FAILURE, True), found


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "end"}'])
def test_a_generation_config_that_join_refuses_is_named_as_join_names_it(tmp_path: Path, content: str) -> None:
    folder = Path(shutil.copytree(zoo.folder("target"), tmp_path / "model"))
    (folder / "generation_config.json").write_text(content)
    files = read_folder("mine", folder)
    found = judge_model(files, is_verifier=True)
    with pytest.raises(UsageError) as refusal:
        read_target_facts(folder, name="mine")
    assert (found.status, found.found) == (CheckStatus.FAILURE, str(refusal.value))
    assert "\n" not in found.found
    assert judge_model(files, is_verifier=False).status is CheckStatus.OK


def test_a_tokenizer_that_no_client_could_read_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(zoo.folder("target"), tmp_path / "model"))
    (folder / "tokenizer_config.json").write_bytes("{}".encode("utf-16"))
    found = judge_model(read_folder("mine", folder), is_verifier=True)
    assert (found.status, "tokenizer_config.json" in found.found) == (CheckStatus.FAILURE, True), found


def test_weights_of_another_kind_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "pytorch_model.bin").touch()
    found = judge_model(read_folder("mine", tmp_path), is_verifier=False)
    assert (found.status, "not safetensors" in found.found) == (CheckStatus.FAILURE, True)


@pytest.mark.parametrize(
    ("files", "status"),
    [
        (ModelFiles(source="a/b", remote_bytes=3 * GIB), CheckStatus.OK),
        (ModelFiles(source="a/b", remote_bytes=0), CheckStatus.FAILURE),
        (ModelFiles(source="a/b", hub_error="offline"), CheckStatus.WARNING),
        (ModelFiles(source="zoo:nobody", problem="no such model"), CheckStatus.FAILURE),
    ],
)
def test_models_that_are_not_here(files: ModelFiles, status: CheckStatus) -> None:
    found = judge_model(files, is_verifier=False)
    assert (found.status, "--model" in found.fix) == (status, status is not CheckStatus.OK)


@pytest.mark.parametrize("source", ["nobody/no-such-model", "no model at all"])
def test_without_a_network_a_hub_id_is_not_judged_wrong(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = judge_model(read_model(source), is_verifier=False)
    assert found.status is (CheckStatus.FAILURE if " " in source else CheckStatus.WARNING)


def estimated(files: ModelFiles, pool_size: PoolSize = POOL, **options: Any) -> ModelMemory | None:
    chosen: dict[str, Any] = {"dtype": "auto", "quantize": None, "on_cpu": True, "base_bytes": 0, "free_bytes": 0}
    token = options.pop("token", TOKEN)
    chosen |= {"engine": EngineFacts(token=token, context_tokens=CONTEXT_TOKENS)}
    return estimate_memory(files, pool_size=pool_size, **chosen | options)


@pytest.mark.parametrize(
    ("dtype", "quantize", "on_cpu", "weights"),
    [
        ("auto", None, True, 4000),
        ("auto", None, False, 2000),
        ("bfloat16", None, True, 2000),
        ("auto", "float16", True, 2000),
        ("auto", "int8", False, 1000),
        ("bfloat16", "int4", False, 500),
    ],
)
def test_memory_is_weights_and_pool(dtype: str, quantize: str | None, on_cpu: bool, weights: int) -> None:
    found = estimated(HERE, dtype=dtype, quantize=quantize, on_cpu=on_cpu)
    assert found == ModelMemory(
        weight_bytes=weights,
        pool_bytes=4 * CONTEXT_TOKENS * TOKEN.total,
        pool_tokens=4 * CONTEXT_TOKENS,
        base_bytes=0,
    )


def test_what_python_takes_counts_too_and_leaves_less_for_the_pool() -> None:
    size = PoolSize(part=0.5)
    free, base = estimated(HERE, size, free_bytes=GIB), estimated(HERE, size, free_bytes=GIB, base_bytes=GIB // 2)
    assert free is not None and base is not None
    assert base.total_bytes == base.pool_bytes + 4000 + GIB // 2
    assert base.pool_tokens < free.pool_tokens < 2.1 * base.pool_tokens
    # Too little for a request is said as a node says it.
    with pytest.raises(UsageError, match="one request takes 512"):
        estimated(HERE, free_bytes=100_000)
    # Where nobody knows what a token takes the pool is left out.
    found = estimated(HERE, dtype="float32", token=TokenBytes(0))
    assert (found and found.total_bytes, found and found.pool_tokens) == (4000, 0)


def test_windows_leave_a_verifier_room_for_more_tokens() -> None:
    size = PoolSize(requests=4, is_verifier=True, size_bytes=GIB)
    whole = estimated(HERE, size)
    partly = estimated(HERE, size, token=replace(TOKEN, windowed=512, window_tokens=64))
    assert whole is not None and partly is not None
    assert partly.pool_tokens > 1.9 * whole.pool_tokens
    assert whole.pool_bytes == pytest.approx(partly.pool_bytes, rel=1e-3) == pytest.approx(GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "pool", "free", "status"),
    [
        (GIB, 0, 2 * GIB, "ok"),
        (GIB, 0, GIB, "warning"),
        (GIB, GIB, 2 * GIB, "ok"),
        (2 * GIB, 0, GIB, "failure"),
        (GIB, GIB, GIB, "failure"),
        (GIB, 0, 0, "skipped"),
    ],
)
def test_memory_is_compared_with_what_is_free(weights: int, pool: int, free: int, status: str) -> None:
    memory = ModelMemory(weight_bytes=weights, pool_bytes=pool, pool_tokens=pool, base_bytes=0)
    found = judge_memory("m", memory, free, where="here")
    assert (found.status, "--quantize" in found.fix) == (status, status in ("warning", "failure"))
    # A model of unknown size is not judged.
    assert judge_memory("m", None, GIB, where="here").status is CheckStatus.SKIPPED
    assert estimated(replace(HERE, weight_bytes=0)) is None


TINY_LLAMA = EngineChoice(kind=EngineKind.LLAMA, device="cpu")


def test_the_library_and_the_memory_of_a_file_are_told() -> None:
    model = read_model(str(tiny_gguf("Q8_0")))
    library, memory = look_at_llama(model, TINY_LLAMA, base_bytes=100 << 20)
    assert (library.status, memory.status) == (CheckStatus.OK, CheckStatus.OK)
    assert "xllamacpp has it, with the devices cpu" in library.found
    # The weights stay as they are in the file, keys and values have 16 bits: 16 requests fill the context of 256.
    assert "of KV cache for 4096 tokens" in memory.found
    assert "100 MiB of Python and libraries" in memory.found
    assert model.weight_bytes < 200_000


def test_a_device_that_is_not_there_is_a_failure() -> None:
    [only] = look_at_llama(
        read_model(str(tiny_gguf())), EngineChoice(kind=EngineKind.LLAMA, device="cuda"), base_bytes=0
    )
    assert only.status is CheckStatus.FAILURE
    assert "has no device 'cuda' on this machine" in only.found


def test_what_llama_cannot_load_is_a_failure(tmp_path: Path) -> None:
    for file in (
        changed_gguf(tiny_gguf(), tmp_path / "odd.gguf", {"llama.expert_used_count": 4}),
        gguf_with_tower(tmp_path / "tower.gguf"),
    ):
        [only] = look_at_llama(read_model(str(file)), TINY_LLAMA, base_bytes=0)
        assert (only.status, file.name in only.found) == (CheckStatus.FAILURE, True)


def test_without_the_wheel_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UsageError("--engine llama needs the package xllamacpp: pip install it.")

    monkeypatch.setattr(llama_library, "llama_library", missing)
    [only] = look_at_llama(read_model(str(tiny_gguf())), TINY_LLAMA, base_bytes=0)
    assert (only.status, "needs the package xllamacpp" in only.found) == (CheckStatus.FAILURE, True)


def test_what_is_no_gguf_file_is_a_failure_and_what_torch_runs_no_business_of_llamas() -> None:
    [only] = look_at_llama(read_model("zoo:target"), TINY_LLAMA, base_bytes=0)
    assert "--engine llama runs GGUF files, and 'target' is none" in only.found
    # What PyTorch runs is no business of llama.cpp's.
    assert look_at_llama(read_model("zoo:target"), EngineChoice(device="cpu"), base_bytes=0) == []


def test_too_little_memory_is_a_failure() -> None:
    options = EngineChoice(kind=EngineKind.LLAMA, device="cpu", pool_size=PoolSize(size_bytes=1000))
    _, memory = look_at_llama(read_model(str(tiny_gguf())), options, base_bytes=0)
    assert memory.status is CheckStatus.FAILURE
    assert "The KV cache would hold" in memory.found
