"""The command alone makes a draft head for a target, from its own questions, and the head agrees with it."""

from pathlib import Path

import pytest
import torch

from cosine_engine.eagle.draft_head import EagleHead
from cosine_engine.models.home_model import is_eagle_head, load_with_home
from cosine_engine.models.served import ModelSource
from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.head_examples import HeadBatch
from cosine_train.training.head_steps import TargetView, head_loss, unrolled
from cosine_train.training.head_training import new_head
from tests.engine.tiny_models import VOCAB, tiny_llama
from tests.node.cli.conftest import Run
from tests.train.training.samples import trained

SMALL = (
    "--head --prompts self --questions 24 --answers 24 --held-out 2 --new-tokens 24 --known-tokens 500 --slots 16"
)


@pytest.mark.thorough
def test_the_agreement_rises_and_the_head_can_be_held_by_a_verifier(tmp_path: Path, run: Run) -> None:
    first = trained(run, tmp_path, tmp_path / "first", "--steps", "1", *SMALL.split())
    better = trained(run, tmp_path, tmp_path / "better", "--steps", "40", "--batch-rows", "4", *SMALL.split())
    before, after = (record["agreement"]["self"]["0"]["steps"][0] for record in (first, better))
    assert after > before
    assert sorted(file.name for file in (tmp_path / "better").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
    ]
    assert is_eagle_head(tmp_path / "better")
    target = ModelSource(model="zoo:target", target="zoo:target")
    home = ModelSource(model=f"eagle3:{tmp_path / 'better'}", target="zoo:target")
    served, drafter = load_with_home(target, home, lambda event, fields: None, measure_s=0.1)
    assert drafter.target is served.engine
    assert drafter.engine.vocab_tokens == served.engine.vocab_tokens


def a_head() -> tuple[EagleHead, TargetView]:
    model = tiny_llama()
    return new_head(model, DraftVocabulary(tuple(range(0, VOCAB, 2)))), TargetView(model, (0, 1, 2))


def a_batch(tokens: torch.Tensor) -> HeadBatch:
    """Return a batch with all the target's probability on one token after every token but the first two."""
    likely = torch.arange(tokens.numel()).view(*tokens.shape, 1) % 50
    chances = torch.ones(*tokens.shape, 1)
    chances[:, :2] = 0.0
    return HeadBatch(tokens, likely, chances)


def test_the_loss_is_that_of_a_plain_computation() -> None:
    head, view = a_head()
    tokens = torch.arange(10, 30)[None]
    batch = a_batch(tokens)
    expected = torch.tensor(0.0)
    for step, output in enumerate(unrolled(head, *view.of(tokens), 4)):
        places = [a for a in range(tokens.shape[1] - 1) if 2 <= a + 1 + step < tokens.shape[1]]
        logits = head.logits(output[0, places])
        wanted = batch.likely[0, [a + 1 + step for a in places], 0]
        expected = expected + 0.8**step * torch.nn.functional.cross_entropy(logits, wanted)
    found = head_loss(head, view, batch)
    assert torch.allclose(found, expected, atol=1e-4)
    (gradient,) = torch.autograd.grad(found, [head.lm_head.weight])
    (plain,) = torch.autograd.grad(expected, [head.lm_head.weight])
    assert torch.allclose(gradient, plain, atol=1e-5)
