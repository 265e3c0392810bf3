"""The command alone makes a draft head for a target, from its own questions, and the head agrees with it."""

from pathlib import Path

import pytest

from cosine_engine.models.home_model import is_eagle_head, load_with_home
from cosine_engine.models.served import ModelSource
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
