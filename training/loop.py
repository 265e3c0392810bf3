"""The training loop: AdamW, warm-up and cosine decay, bf16 autocast, on CPU and CUDA alike."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.stream import TokenMix

Loss = Callable[[torch.nn.Module, Tensor], Tensor]

_LAST_RATE_SHARE = 0.03
"""A choice: the learning rate at the end, as a part of the full one."""
_MOST_GRADIENT_NORM = 1.0
"""The usual bound for language models of any size."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches, learning rate and budgets of a run, which ends at the first budget that is used up."""

    batch_rows: int
    sequence_tokens: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    budget_tokens: float
    budget_minutes: float
    report_every_steps: int = 50


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a run; `losses` holds the loss of the first step and of every reported one."""

    steps: int
    tokens: int
    minutes: float
    losses: tuple[float, ...]


def next_token_loss(model: torch.nn.Module, window: Tensor) -> Tensor:
    """Cross-entropy with the text's own next token."""
    logits = model(input_ids=window[:, :-1]).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def distillation_loss(teacher: torch.nn.Module) -> Loss:
    """Forward KL to the teacher's distribution, up to the teacher's own entropy, which is constant."""

    def loss(model: torch.nn.Module, window: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(teacher(input_ids=window[:, :-1]).logits.float(), dim=-1)
        guessed = F.log_softmax(model(input_ids=window[:, :-1]).logits.float(), dim=-1)
        return -(wanted * guessed).sum(dim=-1).mean()

    return loss


def rate_at(plan: Plan, step: int, progress: float) -> float:
    """The learning rate: linear warm-up times a cosine that ends at a small rest."""
    warm = min(1.0, (step + 1) / plan.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return plan.learning_rate * warm * (_LAST_RATE_SHARE + (1 - _LAST_RATE_SHARE) * cosine)


def run(model: torch.nn.Module, mix: TokenMix, loss_of: Loss, plan: Plan, device: str) -> TrainingResult:
    """Train the model in place until a budget is used up."""
    optimiser = _optimiser(model, plan)
    started_s = time.monotonic()
    steps, losses = 0, list[float]()
    while (progress := _progress(plan, steps, started_s)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(plan, steps, progress)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(model, mix.batch(plan.batch_rows))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MOST_GRADIENT_NORM)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        steps += 1
        if steps == 1 or steps % plan.report_every_steps == 0:
            losses.append(loss.item())
            log.info("step %d, %d tokens, loss %.3f", steps, _tokens(plan, steps), losses[-1])
    return TrainingResult(steps, _tokens(plan, steps), (time.monotonic() - started_s) / 60, tuple(losses))


@torch.no_grad()
def loss_per_token(model: torch.nn.Module, windows: Tensor, device: str) -> float:
    """The mean loss on held-out windows."""
    model.eval()
    with torch.autocast(device, torch.bfloat16):
        return next_token_loss(model, windows).item()


def _optimiser(model: torch.nn.Module, plan: Plan) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)


def _tokens(plan: Plan, steps: int) -> int:
    return steps * plan.batch_rows * plan.sequence_tokens


def _progress(plan: Plan, steps: int, started_s: float) -> float:
    minutes = (time.monotonic() - started_s) / 60
    return max(_tokens(plan, steps) / plan.budget_tokens, minutes / plan.budget_minutes)
