"""GGUF files in PyTorch have llama.cpp's logits for the same file, and the text of their folder.

The files have llama.cpp's names and layout of weights (`tests.engine.gguf_architectures`), so that its results
are an independent reference. Both compute in float32.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from cosine_engine.gguf.architectures import ARCHITECTURES
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.lanes.self_test import error_of
from cosine_engine.llama.library import is_installed
from cosine_engine.llama.process import logits
from cosine_engine.torch import gguf_trial
from cosine_engine.torch.gguf_trial import check_against_llama, llama_logits, tried
from cosine_engine.torch.loading import load_gguf_model, read_config
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.gguf_architectures import TINY, VOCAB, WINDOW, YARN, TinyGguf
from tests.engine.gguf_models import gguf_with_tower, tiny_folder, tiny_gguf
from tests.engine.loaded import torch_engine
from tests.engine.random_serving import Asked, serve_alone
from tests.thoroughness import THOROUGH, quick_first

pytestmark = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")

TEXT: Final = [3 + 7 * place * place % (VOCAB - 3) for place in range(40)]
"""Longer than the sliding windows."""
ROUNDING: Final = 5e-5
"""In standard deviations of the logits: 1.5e-5 was measured at most, with 64 layers."""
TABLE_ROUNDING: Final = 5e-3
"""The same of Gemma, whose GELU llama.cpp looks up in a table of float16: 1.4e-3 was measured at most."""
QUICK: Final = ("llama", "gemma3")
CASES: Final = [name if name in QUICK else pytest.param(name, marks=THOROUGH) for name in TINY]


def tolerance(name: str) -> float:
    return TABLE_ROUNDING if name.startswith("gemma") else ROUNDING


def llama_cpps(file: GgufFile) -> Any:
    return np.array(logits(str(file.path), TEXT, 1))


def in_torch(file: GgufFile, folder: Path, change: Callable[[Any], object] = lambda _: None) -> Any:
    """Return the model of a file, with a changed configuration."""
    config = read_config(str(folder))
    change(config)
    return load_gguf_model(file, config, dtype=torch.float32, attn_implementation="eager")


def logits_of(model: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([TEXT])).logits[0].numpy()


def distance(found: Any, expected: Any) -> float:
    return max(error_of(*rows) for rows in zip(found, expected, strict=True))


def write(tiny: TinyGguf, folder: Path) -> tuple[GgufFile, Path]:
    file = tiny.write(folder / "tiny.gguf")
    return GgufFile.open(file), unfold(file, cache_folder=folder)


def test_every_architecture_is_tried() -> None:
    assert {tiny.architecture for tiny in TINY.values()} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_llama_cpps(name: str, tmp_path: Path) -> None:
    file, folder = write(TINY[name], tmp_path)
    assert distance(logits_of(in_torch(file, folder)), llama_cpps(file)) < tolerance(name)


def test_phi_3_keeps_its_window_which_llama_cpp_leaves_out(tmp_path: Path) -> None:
    file, folder = write(TINY["phi3"].told(attention__sliding_window=WINDOW), tmp_path)
    found, expected = logits_of(in_torch(file, folder)), llama_cpps(file)
    assert distance(found[:WINDOW], expected[:WINDOW]) < ROUNDING
    assert distance(found[WINDOW:], expected[WINDOW:]) > 1000 * ROUNDING


def test_gpt_oss_is_stretched_as_its_own_code_does_it_which_llama_cpp_rounds(tmp_path: Path) -> None:
    stretched = replace(TINY["gpt-oss"], metadata={**TINY["gpt-oss"].metadata, **YARN})
    file, folder = write(stretched, tmp_path)
    expected = llama_cpps(file)
    assert distance(logits_of(in_torch(file, folder)), expected) > 100 * ROUNDING
    rounded = in_torch(file, folder, lambda config: config.rope_parameters.update(truncate=True))
    assert distance(logits_of(rounded), expected) < ROUNDING


REFUSED: Final[Mapping[str, tuple[TinyGguf, str]]] = {
    "a kind of stretching": (TINY["llama"].told(rope__scaling__type="spiral"), "stretched in the way 'spiral'"),
    "an architecture that llama.cpp alone runs": (
        replace(TINY["llama"], architecture="olmo2"),
        "of the kind 'olmo2'",
    ),
    "what only llama.cpp computes": (TINY["llama"].told(attention__clamp_kqv=8.0), r"attention\.clamp_kqv 8\.0"),
    "experts weighted otherwise": (TINY["qwen3moe"].told(expert_gating_func=2), "weights its experts in a way"),
    "heads that are turned in part": (
        TINY["llama"].told(rope__dimension_count=8),
        "turns 8 of 16 numbers of a head",
    ),
    "a tensor too many": (
        replace(TINY["llama"], once={**TINY["llama"].once, "blk.0.attn_q_norm.weight": (16,)}),
        r"has a tensor blk\.0\.attn_q_norm\.weight",
    ),
    "a tensor too few": (
        replace(TINY["gemma3"], layers=TINY["gemma3"].layers[:6]),
        r"lacks model\.layers\.6\.input_layernorm\.weight",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_whole_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    tiny, sentence = REFUSED[what]
    with pytest.raises(UsageError, match=sentence):
        _, folder = write(tiny, tmp_path)
        torch_engine(folder)


@pytest.mark.parametrize("weights", quick_first(["Q4_1", "F16", "F32"]))
def test_a_right_model_is_tried_by_a_process_of_llama_cpp_and_then_remembered(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GgufFile.open(tiny_gguf(weights))
    load = partial(in_torch, file, unfold(file.path, cache_folder=tmp_path))
    for _ in range(2):
        assert check_against_llama(file, load, cache_folder=tmp_path / "marks").config.vocab_size == VOCAB
        monkeypatch.setattr(gguf_trial, "llama_logits", None)
    assert len(list((tmp_path / "marks").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma2", lambda config: setattr(config, "final_logit_softcapping", None)),
        ("qwen3moe", lambda config: setattr(config, "norm_topk_prob", False)),
        ("llama-yarn", lambda config: config.rope_parameters.update(attention_factor=1.0)),
    ],
)
def test_a_setting_that_was_read_wrongly_is_refused(
    name: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    file, folder = write(TINY[name], tmp_path)
    with pytest.raises(UsageError, match=r"tiny\.gguf cannot be run .* differ from llama\.cpp's"):
        tried(
            file,
            partial(in_torch, file, folder, change),
            lambda file, tokens, step: logits(str(file), tokens, step),
        )


def test_a_file_that_llama_cpp_does_not_run_is_served_untried(tmp_path: Path, caplog: Any) -> None:
    # PyTorch counts the rows of the embedding.
    file = GgufFile.open(TINY["llama"].told(vocab_size=VOCAB + 1).write(tmp_path / "tiny.gguf"))
    load = partial(in_torch, file, unfold(file.path, cache_folder=tmp_path))
    with caplog.at_level(logging.INFO, logger=gguf_trial.LOG.name):
        assert tried(file, load, llama_logits) is not None
    assert "was not compared with llama.cpp: tiny.gguf cannot be loaded by llama.cpp" in caplog.text


def test_a_file_of_more_than_half_the_free_memory_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = write(TINY["llama"], tmp_path)
    monkeypatch.setattr(gguf_trial, "free_memory_bytes", lambda: file.path.stat().st_size)
    monkeypatch.setattr(gguf_trial, "llama_logits", None)
    assert check_against_llama(file, partial(in_torch, file, folder), cache_folder=tmp_path / "marks") is not None
    assert not (tmp_path / "marks").exists()


def test_only_what_is_served_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(gguf_trial, "llama_logits", None)

    def see(file: GgufFile, load: Callable[[], Any]) -> Any:
        seen.append(file.path)
        return load()

    monkeypatch.setattr("cosine_engine.torch.loading.check_against_llama", see)
    _, folder = write(TINY["llama"], tmp_path)
    for is_served in (False, True):
        torch_engine(folder, pool_tokens=64, is_served=is_served)
    assert [path.name for path in seen] == ["tiny.gguf"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_file_in_float32_says_what_its_folder_says(temperature: float, tmp_path: Path) -> None:
    from_file = torch_engine(str(unfold(tiny_gguf(), cache_folder=tmp_path)))
    from_folder = torch_engine(tiny_folder())
    assert (from_file.numerics, from_folder.numerics) == ("gguf:F32+float32 deterministic", "float32 deterministic")
    assert (from_file.vocab_tokens, from_file.context_tokens) == (VOCAB, from_folder.context_tokens)
    asked = Asked([3, 70, 140, 9, 11], Sampling(temperature=temperature, seed=7))
    said, expected = ([token for token, _ in serve_alone(each, asked, 12)] for each in (from_file, from_folder))
    assert said == expected


def test_a_file_with_a_tower_for_images_is_its_language_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, said = Asked([3, 70, 140, 9, 11], Sampling()), []
    for file in (TINY["llama"].write(tmp_path / "plain.gguf"), gguf_with_tower(tmp_path / "sha256-0123")):
        folder = unfold(file, cache_folder=tmp_path, is_served=True)
        said.append(serve_alone(torch_engine(folder), asked, 12))
    assert said[0] == said[1]
    assert [record.message for record in caplog.records if "images and sounds are left out" in record.message]


def test_dtype_and_quantisation_are_obeyed_and_named(tmp_path: Path) -> None:
    folder = str(unfold(tiny_gguf("Q8_0"), cache_folder=tmp_path))
    engine = torch_engine(folder, dtype="bfloat16")
    assert engine.numerics == "gguf:Q8_0+bfloat16"
    pytest.importorskip("torchao")
    assert torch_engine(folder, quantize="int8").numerics == "gguf:Q8_0+float32/int8"
