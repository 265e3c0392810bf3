"""Tokens are compared, not rows: a drafter of the same tokens is taken, however its embedding is padded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_node.models.engine_kind import EngineChoice
from cosine_node.models.model import ModelSource, ServedModel, load_served
from cosine_node.models.shared_tokens import shared_tokens
from cosine_protocol.records import Role
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import COMMON, VOCAB, build

TOKENS = 180
"""Tokens of the target, whose embedding has `VOCAB` rows."""


def model(folder: Path, *, rows: int, tokens: int | None) -> Path:
    """A tiny model with so many rows, and a tokenizer of so many words."""
    llama(rows).save_pretrained(folder)
    if tokens is not None:
        words(folder, {f"w{token}": token for token in range(tokens)})
    return folder


def llama(rows: int) -> Any:
    return build(tf.LlamaConfig(**COMMON | {"vocab_size": rows}))


def words(folder: Path, vocabulary: dict[str, int]) -> None:
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def drafter_for(target: Path, folder: Path) -> ServedModel:
    choice = EngineChoice(device="cpu", dtype="float32", threads=1)
    source = ModelSource(model=str(folder), target=str(target), engine=choice)
    return load_served(source, Role.DRAFTER, lambda event, fields: None, measure_s=0.02)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return model(tmp_path / "target", rows=VOCAB, tokens=TOKENS)


def choices(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Choice:
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    nodes = tuple(range(len(prompt)))
    row = Row(sequence, tuple(prompt), nodes, (PREFIX, *nodes[:-1]), scored_from=len(prompt) - 1, candidates=VOCAB)
    (choice,) = engine.forward([row])[0].choices
    engine.release(sequence)
    return choice


def test_rows_beyond_the_tokens_change_no_draft(target: Path, tmp_path: Path) -> None:
    """A drafter with more rows drafts as if they were not there: greedily, sampled, and with a penalty."""
    plain, padded = llama(TOKENS), llama(VOCAB + 56)
    state = {
        name: torch.cat([weight, 9 * weight[:76]]) if name.startswith(("model.embed", "lm_head")) else weight
        for name, weight in plain.state_dict().items()
    }
    padded.load_state_dict(state)
    engines = []
    for name, one in {"plain": plain, "padded": padded}.items():
        one.save_pretrained(tmp_path / name)
        words(tmp_path / name, {f"w{token}": token for token in range(TOKENS)})
        engines.append(drafter_for(target, tmp_path / name).engine)
    for sampling in (
        Sampling(),
        Sampling(temperature=0.9, seed=7),
        Sampling(temperature=1.3, top_p=0.8, seed=1),
        Sampling(repetition_penalty=1.3),
    ):
        first, second = (choices(engine, (5, 9, 70), sampling) for engine in engines)
        assert first.token == second.token
        assert [token for token, _ in first.candidates] == [token for token, _ in second.candidates]
        for (_, one), (_, other) in zip(first.candidates, second.candidates, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_a_drafter_with_fewer_rows_than_tokens_is_matched_as_text(target: Path, tmp_path: Path) -> None:
    made = drafter_for(target, model(tmp_path / "drafter", rows=TOKENS - 20, tokens=TOKENS - 20))
    assert made.engine.numerics == "float32 retokenized"


@pytest.mark.parametrize(
    ("own", "target", "shared"),
    [
        ({"a": 0, "b": 1}, {"a": 0, "b": 1}, 2),
        ({"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2}, 2),
        ({"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1}, 2),
        ({"a": 0, "b": 1, "[PAD2]": 2}, {"a": 0, "b": 1, "c": 2, "d": 3}, 2),
        ({"a": 0, "b": 1, "d": 3}, {"a": 0, "b": 1, "[PAD2]": 2, "d": 3}, 4),
        ({"a": 1, "b": 0}, {"a": 0, "b": 1}, None),
        ({"a": 0, "x": 1}, {"a": 0, "b": 1}, None),
        ({"x": 5}, {"a": 0}, None),
        ({}, {"a": 0}, None),
    ],
)
def test_ids_are_shared_where_all_that_both_know_mean_the_same(
    own: dict[str, int], target: dict[str, int], shared: int | None
) -> None:
    assert shared_tokens(own, target) == shared
