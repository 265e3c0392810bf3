"""A round of learning on a model of one small layer: it learns the target's text, reproducibly by seed."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cosine_engine.vocabulary import DraftVocabulary
from cosine_node.drafter.observer import NO_GUESS
from cosine_protocol.request import Sampling
from cosine_train.learning.finetuning import RoundSettings, acceptance_along, train_round
from cosine_train.learning.streams import VerifiedStream
from cosine_train.training.distilling import drafter_in
from tests.train.learning.streams import stream

VOCAB_TOKENS = 512
SETTINGS = RoundSettings(
    vocab_tokens=VOCAB_TOKENS, seed=3, epochs=6.0, learning_rate=1e-2, own_weight=0.5, own_texts=4, own_tokens=8
)
ONE_EPOCH = replace(SETTINGS, epochs=1.0)
WORD = 400
"""A token outside the drafter's vocabulary."""


def model_of(vocab_tokens: int) -> Any:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=vocab_tokens,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model_of(VOCAB_TOKENS).save_pretrained(folder)
    return folder


def told(tokens: tuple[int, ...], client: str = "c", **others: Any) -> VerifiedStream:
    fields = {"prompt": tokens[:4], "guesses": (NO_GUESS,) * len(tokens)} | others
    return VerifiedStream(client=client, sampling=Sampling(), tokens=tokens, **fields)


def recited(count: int, *, first: int = 0) -> list[VerifiedStream]:
    """Return texts of a target that counts on from random numbers, unlike any drafter."""
    starts = [Random(number).randrange(60) for number in range(first, first + count)]
    return [told(tuple(300 + (start + step) % 60 for step in range(24))) for start in starts]


def test_it_gets_better_at_what_it_has_learned(tmp_path: Path, base: Path) -> None:
    learned, held_out = recited(48), recited(6, first=100)
    report = train_round(base, learned, held_out, tmp_path, SETTINGS, shipped=base)
    assert report.before.tokens == report.after.tokens == sum(len(one.tokens) for one in held_out)
    assert report.after.share > report.before.share + 0.1
    assert acceptance_along(drafter_in(tmp_path, vocab_tokens=VOCAB_TOKENS), held_out) == report.after
    assert (report.steps, report.trained_tokens) == (36, 6 * 48 * 24)


def test_the_same_seed_makes_the_same_weights(tmp_path: Path, base: Path) -> None:
    for name in ("one", "other"):
        train_round(base, recited(8), recited(1), tmp_path / name, ONE_EPOCH, shipped=base)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other != (base / "model.safetensors").read_bytes()


def test_a_drafter_with_a_vocabulary_of_its_own_keeps_it_and_learns_words(tmp_path: Path) -> None:
    known = DraftVocabulary(tuple(range(256)))
    base, out = tmp_path / "base", tmp_path / "out"
    model_of(known.reserved_id + 1).save_pretrained(base)
    known.write(base)
    learned = [stream(seed=seed) for seed in range(8)]
    learned += [replace(one, tokens=(WORD, *one.tokens[1:])) for one in learned[:4]]
    report = train_round(base, learned, learned, out, ONE_EPOCH, shipped=base)
    vocabulary = DraftVocabulary.read(out)
    assert vocabulary is not None and vocabulary.target_ids == (*known.target_ids, WORD)
    assert report.after.tokens == sum(len(one.tokens) for one in learned)
