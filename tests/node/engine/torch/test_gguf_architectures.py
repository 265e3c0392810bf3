"""GGUF files of every known architecture in PyTorch: the logits and the texts that llama.cpp gets of the same file.

The files are made under llama.cpp's names and as it lays weights out (`tests.node.engine.gguf_architectures`), so
that its own results are a reference that shares nothing with ours. Both compute in float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from cosine_node.engine.llama.library import is_installed, llama_library
from cosine_node.engine.llama.loading import error_of
from cosine_node.engine.llama.model import FedToken, LlamaContext, LlamaModel
from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.architectures import ARCHITECTURES
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.engine.gguf_architectures import TINY, VOCAB, WINDOW, YARN, TinyGguf
from tests.node.engine.random_serving import Asked, serve_alone
from tests.thoroughness import THOROUGH

pytestmark = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")

TEXT: Final = [3 + 7 * place * place % (VOCAB - 3) for place in range(40)]
"""Longer than the sliding windows."""
PROMPT_TOKENS: Final = 12
WRITTEN_TOKENS: Final = 24
ROUNDING: Final = 5e-5
"""In standard deviations of the logits: 1.5e-5 was measured at most, with 64 layers."""
TABLE_ROUNDING: Final = 5e-3
"""The same of Gemma, whose GELU llama.cpp looks up in a table of float16: 1.4e-3 was measured at most."""
TIE: Final = 0.02
"""In logits, of texts that part at such a choice: their deviation is 1.5."""
QUICK: Final = ("llama", "gemma3")
OF_EACH_KIND: Final = ("llama", "qwen3moe", "gemma3", "gpt-oss", "deepseek2")
"""One of each kind of layers. Of all architectures every check compares logits, of these the rest as well."""
DEEP: Final = 40
"""Models of more layers amplify what rounding does, and are compared by logits alone."""
SHALLOW: Final = [
    name
    if name in QUICK
    else pytest.param(name, marks=pytest.mark.thorough if name in OF_EACH_KIND else pytest.mark.soak)
    for name, tiny in TINY.items()
    if len(tiny.layers) < DEEP
]


def cases(names: Sequence[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=THOROUGH) for name in names]


def tolerance(name: str) -> float:
    return TABLE_ROUNDING if name.startswith("gemma") else ROUNDING


class LlamaCpp:
    """llama.cpp's own results for a file, token by token in one sequence."""

    def __init__(self, file: Path) -> None:
        model = LlamaModel(llama_library(), GgufFile.open(file))
        self._context = LlamaContext(model, tokens=256, lanes=1, pass_tokens=64, threads=1)

    def logits(self, tokens: Sequence[int], start: int = 0) -> Any:
        fed = [FedToken(token, start + place, [0], True) for place, token in enumerate(tokens)]
        return self._context.logits(fed).copy()

    def text(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The most probable continuation."""
        logits = self.logits(prompt)[-1]
        found: list[int] = []
        while len(found) < tokens:
            found.append(int(logits.argmax()))
            logits = self.logits(found[-1:], len(prompt) + len(found) - 1)[-1]
        return found


def in_torch(file: GgufFile, folder: Path) -> Any:
    return load_gguf_model(file, read_config(str(folder)), dtype=torch.float32, attn_implementation="eager")


def logits_of(model: Any, tokens: Sequence[int] = TEXT) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0].numpy()


def distance(found: Any, expected: Any) -> float:
    return max(error_of(*rows) for rows in zip(found, expected, strict=True))


def write(tiny: TinyGguf, folder: Path) -> tuple[GgufFile, Path]:
    """A file and the folder that it is unfolded to."""
    file = tiny.write(folder / "tiny.gguf")
    return GgufFile.open(file), unfold(file, cache_folder=folder)


def test_every_architecture_is_tried() -> None:
    assert {tiny.architecture for tiny in TINY.values()} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", cases(list(TINY)))
def test_logits_are_llama_cpps(name: str, tmp_path: Path) -> None:
    file, folder = write(TINY[name], tmp_path)
    assert distance(logits_of(in_torch(file, folder)), LlamaCpp(file.path).logits(TEXT)) < tolerance(name)


@pytest.mark.parametrize("name", SHALLOW)
def test_texts_are_llama_cpps_and_the_engine_serves_the_file(name: str, tmp_path: Path) -> None:
    file, folder = write(TINY[name], tmp_path)
    engine = load_engine(str(folder), device="cpu", pool_tokens=256)
    written = serve_alone(engine, Asked(TEXT[:PROMPT_TOKENS], Sampling()), WRITTEN_TOKENS)
    expected = LlamaCpp(file.path).text(TEXT[:PROMPT_TOKENS], WRITTEN_TOKENS)
    apart = [margin for (token, margin), other in zip(written, expected, strict=True) if token != other]
    # Where GELU is rounded otherwise, it may decide between two tokens that are as good.
    assert not apart or (name.startswith("gemma") and apart[0] < TIE)
    assert engine.numerics == "gguf:F32+float32"


def swapped(file: GgufFile, first: str, second: str) -> GgufFile:
    tensors = file.tensors
    return replace(file, tensors={**tensors, first: tensors[second], second: tensors[first]})


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHALLOW)
def test_any_two_tensors_in_each_others_place_would_be_noticed(name: str, tmp_path: Path) -> None:
    file, folder = write(TINY[name], tmp_path)
    expected = logits_of(in_torch(file, folder))
    layers = [[one for one in file.tensors if one.startswith(f"blk.{number}.")] for number in range(2)]
    for first, second in (pair for layer in layers for pair in combinations(layer, 2)):
        if file.tensors[first].shape == file.tensors[second].shape:
            found = logits_of(in_torch(swapped(file, first, second), folder))
            assert not distance(found, expected) <= 4 * tolerance(name), f"{first} and {second}"


def test_phi_3_keeps_its_window_which_llama_cpp_leaves_out(tmp_path: Path) -> None:
    file, folder = write(TINY["phi3"].told(attention__sliding_window=WINDOW), tmp_path)
    found, expected = logits_of(in_torch(file, folder)), LlamaCpp(file.path).logits(TEXT)
    assert distance(found[:WINDOW], expected[:WINDOW]) < ROUNDING
    assert distance(found[WINDOW:], expected[WINDOW:]) > 1000 * ROUNDING


def test_gpt_oss_is_stretched_as_its_own_code_does_it_which_llama_cpp_rounds(tmp_path: Path) -> None:
    stretched = replace(TINY["gpt-oss"], metadata={**TINY["gpt-oss"].metadata, **YARN})
    file, folder = write(stretched, tmp_path)
    expected = LlamaCpp(file.path).logits(TEXT)
    config = read_config(str(folder))
    assert distance(logits_of(in_torch(file, folder)), expected) > 100 * ROUNDING
    config.rope_parameters["truncate"] = True
    rounded = load_gguf_model(file, config, dtype=torch.float32, attn_implementation="eager")
    assert distance(logits_of(rounded), expected) < ROUNDING


REFUSED: Final[Mapping[str, tuple[TinyGguf, str]]] = {
    "a kind of stretching": (TINY["llama"].told(rope__scaling__type="spiral"), "stretched in the way 'spiral'"),
    "an architecture that llama.cpp alone runs": (
        replace(TINY["llama"], architecture="olmo2"),
        "of the kind 'olmo2'",
    ),
    "no attention": (
        replace(TINY["llama"].told(ssm__inner_size=WINDOW, attention__head_count=0), architecture="mamba"),
        "of the kind 'mamba'",
    ),
    "what only llama.cpp computes": (TINY["llama"].told(attention__clamp_kqv=8.0), r"attention\.clamp_kqv 8\.0"),
    "experts weighted otherwise": (TINY["qwen3moe"].told(expert_gating_func=2), "weights its experts in a way"),
    "heads that are turned in part": (
        TINY["llama"].told(rope__dimension_count=8),
        "turns 8 of 16 numbers of a head",
    ),
    "heads that are not turned": (TINY["granite"].told(rope__scaling__finetuned=False), "turns no heads"),
    "a tensor too many": (
        replace(TINY["llama"], once={**TINY["llama"].once, "blk.0.attn_q_norm.weight": (16,)}),
        r"has a tensor blk\.0\.attn_q_norm\.weight",
    ),
    "a tensor too few": (
        replace(TINY["gemma3"], layers=TINY["gemma3"].layers[:6]),
        r"lacks model\.layers\.6\.input_layernorm\.weight",
    ),
    "experts of another size": (
        TINY["qwen3moe"].told(expert_feed_forward_length=48),
        "The weights of .* cannot be read",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_whole_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    tiny, sentence = REFUSED[what]
    with pytest.raises(UsageError, match=sentence):
        _, folder = write(tiny, tmp_path)
        load_engine(str(folder), device="cpu", pool_tokens=64)
