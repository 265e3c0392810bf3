"""The training loop: its rate and budgets, its numerics, and that an interruption changes nothing."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cosine_train.training.loop import Training, TrainingPlan, train

PLAN = TrainingPlan(learning_rate=0.1, warmup_steps=2, weight_decay=0.0, budget_steps=30, report_every_steps=1)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def draw(step: int) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(step))


def loss_of(trained: torch.nn.Module, batch: Tensor) -> Tensor:
    distance: Tensor = (trained(batch)[:, 0] - batch.sum(-1)).pow(2).mean()
    return distance


class Interrupted(Exception):
    """Any interruption of a training."""


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_train.training.loop.CHECKPOINT_EVERY_S", -1.0)
    file = tmp_path / "checkpoint.pt"

    def draw_until_interrupted(step: int) -> Tensor:
        if step == 12:
            raise Interrupted
        return draw(step)

    def run(batches: object, trained: torch.nn.Module) -> Training:
        return train(trained, batches, loss_of, PLAN, device="cpu", checkpoint=file)  # type: ignore[arg-type]

    with pytest.raises(Interrupted):
        run(draw_until_interrupted, model())
    resumed, whole = model(), model()
    again = run(draw, resumed)
    expected = train(whole, draw, loss_of, PLAN, device="cpu")
    assert again.losses == expected.losses
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight)
