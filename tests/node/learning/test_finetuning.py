"""A round of learning on real weights: it learns what the target says, and the same from the same seed."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from cosine_node import zoo
from cosine_node.drafter.observer import NO_GUESS, FailedBranch
from cosine_node.engine.torch.loading import load_model
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.learning import finetuning
from cosine_node.learning.finetuning import (
    MOST_TOKENS,
    Experience,
    RoundSettings,
    acceptance_along,
    drafter_in,
    train_round,
)
from cosine_node.learning.streams import VerifiedStream
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.learning.streams import stream

VOCAB_TOKENS = 2048
SETTINGS = RoundSettings(vocab_tokens=VOCAB_TOKENS, seed=3, epochs=6.0, own_weight=4.0, own_texts=16)
BASE = zoo.folder("draft-code")
REFUSED = 41
WORD = 49_000
"""A token that `smol-code` does not know."""


def recited(count: int, *, first: int = 0) -> list[VerifiedStream]:
    """Texts of a target that goes on counting, from somewhere, as no drafter expects."""
    made = []
    for number in range(first, first + count):
        start = 300 + Random(number).randrange(60)
        tokens = tuple(300 + (start + step) % 60 for step in range(28))
        made.append(
            VerifiedStream(
                client="c",
                sampling=Sampling(),
                prompt=tokens[:4],
                tokens=tokens[4:],
                guesses=(NO_GUESS,) * 24,
                failed=(),
            )
        )
    return made


def test_it_gets_better_at_what_it_has_learned(tmp_path: Path) -> None:
    learned, held_out = recited(48), recited(12, first=100)
    report = train_round(BASE, learned, held_out, tmp_path, SETTINGS, shipped=BASE)
    assert report.before.tokens == report.after.tokens == sum(len(one.tokens) for one in held_out)
    assert report.after.share > report.before.share + 0.1
    assert acceptance_along(drafter_in(tmp_path, vocab_tokens=VOCAB_TOKENS), held_out) == report.after
    assert (report.steps, report.trained_tokens) == (36, 6 * 48 * 24)


def test_the_same_seed_makes_the_same_weights(tmp_path: Path) -> None:
    learned = recited(16)
    for name in ("one", "other"):
        train_round(
            BASE,
            learned,
            learned[:2],
            tmp_path / name,
            RoundSettings(vocab_tokens=VOCAB_TOKENS, epochs=1, own_texts=16),
            shipped=BASE,
        )
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other
    assert one != (BASE / "model.safetensors").read_bytes()


def test_a_drafter_with_a_vocabulary_of_its_own_keeps_it_and_learns_words(tmp_path: Path) -> None:
    from cosine_node.models.model import fetch_folder

    base = fetch_folder("zoo:smol-code")
    learned = [stream(seed=seed, vocab=2000) for seed in range(8)]
    learned += [replace(one, tokens=(WORD, *one.tokens[1:])) for one in learned[:4]]
    settings = RoundSettings(vocab_tokens=49_152, epochs=1, own_texts=16)
    report = train_round(base, learned, learned, tmp_path, settings, shipped=base)
    vocabulary, before = DraftVocabulary.read(tmp_path), DraftVocabulary.read(base)
    assert vocabulary is not None and before is not None
    assert {*before.target_ids, WORD} <= set(vocabulary.target_ids)
    assert report.after.tokens == sum(len(one.tokens) for one in learned)


def test_texts_of_any_length_are_learned_from(tmp_path: Path) -> None:
    texts = [
        stream(prompt=1, tokens=8, seed=1),
        stream(prompt=3000, tokens=40, seed=2),
        stream(prompt=40, tokens=3000, seed=3),
    ]
    report = train_round(
        BASE, texts, texts, tmp_path, RoundSettings(vocab_tokens=VOCAB_TOKENS, epochs=1, own_texts=16), shipped=BASE
    )
    assert report.before.tokens == 8, "what does not fit into the context measures nothing"


def test_many_texts_are_gone_over_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "MOST_TOKENS", 2 * 8 * 24)
    report = train_round(BASE, recited(8), [], tmp_path, SETTINGS, shipped=BASE)
    assert report.trained_tokens == 2 * 8 * 24


def test_without_texts_there_is_no_round(tmp_path: Path) -> None:
    for texts in ([], [stream(tokens=MOST_TOKENS + 1)]):
        with pytest.raises(UsageError, match="no texts"):
            train_round(BASE, texts, [], tmp_path, SETTINGS, shipped=BASE)


def refused_stream(seed: int) -> VerifiedStream:
    """A text after whose fourth token the drafter was sure of a token that the target refused."""
    rng = Random(seed)
    tokens = tuple(rng.randrange(300, 360) for _ in range(12))
    return VerifiedStream(
        client="c",
        sampling=Sampling(),
        prompt=tokens[:4],
        tokens=tokens,
        guesses=(NO_GUESS,) * 4 + (REFUSED,) + (NO_GUESS,) * 7,
        failed=(FailedBranch(4, (REFUSED, 3), 0.9),),
    )


def chance_of_refused(folder: Path, streams: list[VerifiedStream]) -> float:
    """The mean probability of the refused token where it was refused."""
    model = load_model(str(folder), dtype=torch.float32)
    chances = []
    for one in streams:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([one.prompt + one.tokens[:4]])).logits[0, -1]
        chances.append(float(logits.softmax(-1)[REFUSED]))
    return sum(chances) / len(chances)


@pytest.mark.parametrize("experience", [Experience.UNGUIDED, Experience.BOTH])
def test_what_the_target_refused_becomes_less_likely(tmp_path: Path, experience: Experience) -> None:
    streams = [refused_stream(seed) for seed in range(16)]
    for weight in (0.0, 20.0):
        settings = RoundSettings(
            vocab_tokens=VOCAB_TOKENS,
            experience=experience,
            epochs=4.0,
            refused_weight=weight,
            own_weight=0.0,
            own_texts=8,
        )
        train_round(BASE, streams, streams[:1], tmp_path / str(weight), settings, shipped=BASE)
    heard, ignored = (chance_of_refused(tmp_path / str(weight), streams) for weight in (20.0, 0.0))
    assert heard < ignored


def test_unguided_experience_says_nothing_of_what_was_not_refused(tmp_path: Path) -> None:
    learned, held_out = recited(24), recited(8, first=100)
    shares = {}
    for experience in (Experience.GUIDED, Experience.UNGUIDED):
        settings = RoundSettings(
            vocab_tokens=VOCAB_TOKENS, experience=experience, epochs=6.0, own_weight=4.0, own_texts=16
        )
        shares[experience] = train_round(
            BASE, learned, held_out, tmp_path / experience, settings, shipped=BASE
        ).after.share
    assert shares[Experience.UNGUIDED] < shares[Experience.GUIDED]
