"""A GGUF file that PyTorch is to serve has llama.cpp's logits, or is refused in one sentence."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cosine_node.engine.llama.library import is_installed
from cosine_node.engine.llama.process import logits
from cosine_node.engine.torch import gguf_trial
from cosine_node.engine.torch.gguf_trial import check_against_llama, llama_logits, tried
from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_protocol.errors import UsageError
from tests.node.engine.gguf_architectures import TINY, VOCAB
from tests.node.engine.gguf_models import tiny_gguf
from tests.thoroughness import quick_first

pytestmark = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")

Change = Callable[[Any], None]


def told_here(file: Path, tokens: Sequence[int], step: int) -> list[list[float]]:
    return logits(file, (tokens, step))


def loading(name: str, folder: Path, change: Change = lambda _: None) -> tuple[GgufFile, Callable[[], Any]]:
    """A tiny file, and how it is loaded with a changed configuration."""
    file = GgufFile.open(TINY[name].write(folder / "tiny.gguf"))
    return file, partial(load_changed, file, file, folder, change)


def load_changed(file: GgufFile, read: GgufFile, folder: Path, change: Change) -> Any:
    config = read_config(str(unfold(file.path, cache_folder=folder / "cache")))
    change(config)
    return load_gguf_model(read, config, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize("weights", quick_first(["Q4_1", "F16", "F32"]))
def test_a_right_model_is_tried_by_a_process_of_llama_cpp_and_then_remembered(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GgufFile.open(tiny_gguf(weights))
    load = partial(load_changed, file, file, tmp_path, lambda _: None)
    for _ in range(2):
        assert check_against_llama(file, load, cache_folder=tmp_path / "marks").config.vocab_size == VOCAB
        monkeypatch.setattr(gguf_trial, "llama_logits", None)
    assert len(list((tmp_path / "marks").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma2", lambda config: setattr(config, "final_logit_softcapping", None)),
        ("gemma3", lambda config: setattr(config, "sliding_window", 4096)),
        ("granite", lambda config: setattr(config, "logits_scaling", 1.0)),
        ("qwen3moe", lambda config: setattr(config, "norm_topk_prob", False)),
        ("llama-yarn", lambda config: config.rope_parameters.update(attention_factor=1.0)),
    ],
)
def test_a_setting_that_was_read_wrongly_is_refused(name: str, change: Change, tmp_path: Path) -> None:
    file, load = loading(name, tmp_path, change)
    with pytest.raises(UsageError, match=r"tiny\.gguf cannot be run .* deviations from those that llama\.cpp has"):
        tried(file, load, told_here)


def test_tensors_in_each_others_place_are_refused(tmp_path: Path) -> None:
    file, _ = loading("llama", tmp_path)
    first, second = "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"
    swapped = {**file.tensors, first: file.tensors[second], second: file.tensors[first]}
    load = partial(load_changed, file, replace(file, tensors=swapped), tmp_path, lambda _: None)
    with pytest.raises(UsageError, match="deviations from those"):
        tried(file, load, told_here)


def test_a_file_that_llama_cpp_does_not_run_is_served_untried(tmp_path: Path, caplog: Any) -> None:
    # PyTorch counts the rows of the embedding.
    file = GgufFile.open(TINY["llama"].told(vocab_size=VOCAB + 1).write(tmp_path / "tiny.gguf"))
    load = partial(load_changed, file, file, tmp_path, lambda _: None)
    with caplog.at_level(logging.INFO, logger=gguf_trial.LOG.name):
        assert tried(file, load, llama_logits) is not None
    assert "was not tried against llama.cpp: tiny.gguf cannot be loaded by llama.cpp" in caplog.text


def test_a_file_that_stops_llama_cpp_is_served_untried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, load = loading("llama", tmp_path)
    monkeypatch.setattr("cosine_node.processes.llama.LLAMA_PROCESS", "no.such.module")
    with pytest.raises(UsageError, match=r"llama\.cpp stopped at it"):
        llama_logits(file.path, [1, 2], 1)
    assert tried(file, load, llama_logits) is not None


def test_a_file_of_more_than_half_the_free_memory_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, load = loading("llama", tmp_path)
    monkeypatch.setattr(gguf_trial, "free_memory_bytes", lambda: file.path.stat().st_size)
    monkeypatch.setattr(gguf_trial, "llama_logits", None)
    assert check_against_llama(file, load, cache_folder=tmp_path / "marks") is not None
    assert not (tmp_path / "marks").exists()


def test_only_what_is_served_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(gguf_trial, "llama_logits", None)

    def see(file: GgufFile, load: Callable[[], Any]) -> Any:
        seen.append(file.path)
        return load()

    monkeypatch.setattr("cosine_node.engine.torch.loading.check_against_llama", see)
    folder = unfold(TINY["llama"].write(tmp_path / "tiny.gguf"), cache_folder=tmp_path)
    for is_served in (False, True):
        load_engine(str(folder), device="cpu", pool_tokens=64, is_served=is_served)
    assert [path.name for path in seen] == ["tiny.gguf"]
