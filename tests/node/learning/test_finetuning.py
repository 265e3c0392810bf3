"""A round of learning, on a model of one small layer: it learns what the target says, and one seed decides all."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cosine_node.drafter.observer import NO_GUESS, FailedBranch
from cosine_node.engine.torch.loading import load_model
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.learning import finetuning
from cosine_node.learning.finetuning import (
    LEAST_TIMES,
    MOST_TOKENS,
    Experience,
    RoundSettings,
    acceptance_along,
    drafter_in,
    grown,
    in_earlier_ids,
    train_round,
)
from cosine_node.learning.streams import VerifiedStream
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.learning.streams import stream

VOCAB_TOKENS = 512
SETTINGS = RoundSettings(
    vocab_tokens=VOCAB_TOKENS, seed=3, epochs=6.0, learning_rate=1e-2, own_weight=0.5, own_texts=8, own_tokens=16
)
REFUSED = 41
WORD = 400
"""A token that the drafter of a vocabulary of its own does not know."""


def written(folder: Path, *, vocab_tokens: int) -> Path:
    """A folder with a drafter that knows nothing yet."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=vocab_tokens,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("base"), vocab_tokens=VOCAB_TOKENS)


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


def test_it_gets_better_at_what_it_has_learned(tmp_path: Path, base: Path) -> None:
    learned, held_out = recited(48), recited(12, first=100)
    report = train_round(base, learned, held_out, tmp_path, SETTINGS, shipped=base)
    assert report.before.tokens == report.after.tokens == sum(len(one.tokens) for one in held_out)
    assert report.after.share > report.before.share + 0.1
    assert acceptance_along(drafter_in(tmp_path, vocab_tokens=VOCAB_TOKENS), held_out) == report.after
    assert (report.steps, report.trained_tokens) == (36, 6 * 48 * 24)
    # Of what was not refused, unguided experience says nothing.
    unguided = replace(SETTINGS, experience=Experience.UNGUIDED)
    assert (
        train_round(base, learned, held_out, tmp_path / "u", unguided, shipped=base).after.share
        < report.after.share
    )


def test_the_same_seed_makes_the_same_weights(tmp_path: Path, base: Path) -> None:
    learned, settings = recited(16), replace(SETTINGS, epochs=1.0)
    for name in ("one", "other"):
        train_round(base, learned, learned[:2], tmp_path / name, settings, shipped=base)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other
    assert one != (base / "model.safetensors").read_bytes()


def test_a_drafter_with_a_vocabulary_of_its_own_keeps_it_and_learns_words(tmp_path: Path) -> None:
    known = DraftVocabulary(tuple(range(256)))
    base, out = written(tmp_path / "base", vocab_tokens=known.reserved_id + 1), tmp_path / "out"
    known.write(base)
    learned = [stream(seed=seed) for seed in range(8)]
    learned += [replace(one, tokens=(WORD, *one.tokens[1:])) for one in learned[:4]]
    report = train_round(base, learned, learned, out, replace(SETTINGS, epochs=1.0), shipped=base)
    vocabulary = DraftVocabulary.read(out)
    assert vocabulary is not None
    assert vocabulary.target_ids == (*known.target_ids, WORD)
    assert report.after.tokens == sum(len(one.tokens) for one in learned)


def test_texts_of_any_length_are_learned_from(tmp_path: Path, base: Path) -> None:
    texts = [
        stream(prompt=1, tokens=8, seed=1),
        stream(prompt=3000, tokens=40, seed=2),
        stream(prompt=40, tokens=3000, seed=3),
    ]
    report = train_round(base, texts, texts, tmp_path, replace(SETTINGS, epochs=1.0), shipped=base)
    assert report.before.tokens == 8, "what does not fit into the context measures nothing"


def test_many_texts_are_gone_over_less_often(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "MOST_TOKENS", 2 * 8 * 24)
    report = train_round(base, recited(8), [], tmp_path, SETTINGS, shipped=base)
    assert report.trained_tokens == 2 * 8 * 24


def test_without_texts_there_is_no_round(tmp_path: Path, base: Path) -> None:
    for texts in ([], [stream(tokens=MOST_TOKENS + 1)]):
        with pytest.raises(UsageError, match="no texts"):
            train_round(base, texts, [], tmp_path, SETTINGS, shipped=base)


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
def test_what_the_target_refused_becomes_less_likely(tmp_path: Path, base: Path, experience: Experience) -> None:
    streams = [refused_stream(seed) for seed in range(16)]
    sure, short = tmp_path / "sure", replace(SETTINGS, own_weight=0.0)
    train_round(base, [replace(one, tokens=(REFUSED,) * 12) for one in streams], [], sure, short, shipped=base)
    for weight in (0.0, 20.0):
        settings = replace(short, epochs=1.0, experience=experience, refused_weight=weight)
        train_round(sure, streams, [], tmp_path / str(weight), settings, shipped=base)
    heard, ignored = (chance_of_refused(tmp_path / str(weight), streams) for weight in (20.0, 0.0))
    assert heard < ignored


KNOWN = DraftVocabulary((2, 3, 5, 8, 13))


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(4)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=KNOWN.reserved_id + 1,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()


def test_tokens_that_come_often_are_learned_and_others_are_not(model: LlamaForCausalLM) -> None:
    often, rare = (7,) * LEAST_TIMES, (9,) * (LEAST_TIMES - 1)
    larger = grown(model, KNOWN, [(*often, 2, 3), rare])
    assert larger is not None
    assert larger.vocabulary.target_ids == (2, 3, 5, 7, 8, 13)
    assert grown(model, KNOWN, [rare, (2, 3, 5)]) is None


@torch.no_grad()
def test_what_was_known_is_judged_as_before(model: LlamaForCausalLM) -> None:
    larger = grown(model, KNOWN, [(7, 1) * LEAST_TIMES])
    assert larger is not None
    text = (5, 2, 13, 8)
    before, after = (
        one(input_ids=torch.tensor([ids.own_tokens(text)])).logits
        for one, ids in ((model, KNOWN), (larger.model.eval(), larger.vocabulary))
    )
    places = torch.tensor(larger.vocabulary.own_tokens(KNOWN.target_ids))
    torch.testing.assert_close(after[..., places], before[..., : KNOWN.reserved_id])
    # The two new ones begin as likely as the reserved id.
    reserved = before[..., KNOWN.reserved_id, None].expand(-1, -1, 3)
    new = [larger.vocabulary.own_tokens((token,))[0] for token in (1, 7)]
    torch.testing.assert_close(after[..., [*new, larger.vocabulary.reserved_id]], reserved)


def test_in_earlier_ids_all_that_is_new_joins_the_reserved_id() -> None:
    logs = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]).log()
    joined = in_earlier_ids(logs, torch.tensor([0, 2])).exp()
    torch.testing.assert_close(joined, torch.tensor([0.1, 0.3, 0.6]))
