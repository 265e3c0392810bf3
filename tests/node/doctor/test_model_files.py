"""Models by their files: no weights are read, nothing is fetched."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cosine_node import model, zoo
from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.model_files import (
    POOL_TOKENS,
    ModelFiles,
    judge_memory,
    judge_model,
    needed_bytes,
    read_folder,
    read_model,
)
from cosine_p2p.tokenizer_files import TokenizerFiles

GIB = 1 << 30
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
HERE = ModelFiles(source="m", folder=Path("m"), config=LLAMA, weight_bytes=2000, parameters=1000)


def test_an_embedded_model_is_whole() -> None:
    files = read_model("zoo:target")
    assert judge_model(files, is_verifier=True).status is CheckStatus.OK
    tokenizer = TokenizerFiles.read(zoo.tokenizer_folder())
    assert tokenizer is not None
    assert (files.tokenizer_digest, files.weight_bytes > files.parameters) == (tokenizer.digest.hex(), True)


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


@pytest.mark.parametrize(
    ("dtype", "quantize", "on_cpu", "weights", "width"),
    [
        ("auto", None, True, 4000, 4),
        ("auto", None, False, 2000, 2),
        ("bfloat16", None, True, 2000, 2),
        ("auto", "int8", False, 1000, 2),
        ("bfloat16", "int4", False, 500, 2),
    ],
)
def test_memory_is_weights_and_pool(
    dtype: str, quantize: str | None, on_cpu: bool, weights: int, width: int
) -> None:
    keys_and_values = 2 * POOL_TOKENS * 2 * 2 * 16 * width
    assert needed_bytes(HERE, dtype=dtype, quantize=quantize, on_cpu=on_cpu) == weights + keys_and_values


def test_the_pool_is_the_one_a_node_reserves() -> None:
    assert POOL_TOKENS == model.POOL_TOKENS


@pytest.mark.parametrize("config", [{}, {"num_attention_heads": 0}, {"text_config": 3}])
def test_a_configuration_that_does_not_tell_leaves_the_pool_out(config: dict[str, object]) -> None:
    files = replace(HERE, config=config)
    assert needed_bytes(files, dtype="float32", quantize=None, on_cpu=True) == 4000


@pytest.mark.parametrize(
    ("needed", "free", "status"),
    [
        (GIB, 2 * GIB, "ok"),
        (GIB, GIB, "warning"),
        (2 * GIB, GIB, "failure"),
        (0, GIB, "skipped"),
        (GIB, 0, "skipped"),
    ],
)
def test_memory_is_compared_with_what_is_free(needed: int, free: int, status: str) -> None:
    found = judge_memory("m", needed, free, where="here")
    assert (found.status, "--quantize" in found.fix) == (status, status in ("warning", "failure"))
