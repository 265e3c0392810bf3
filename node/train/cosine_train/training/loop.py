"""The training loop: AdamW, warm-up and cosine decay, bfloat16 where it is fast; it can be interrupted."""

import ctypes
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from cosine_engine.processor import give_back_freed_memory, has_fast_bfloat16

LAST_RATE_SHARE: Final = 0.03
"""The final learning rate as a share of the full one."""
MOST_GRADIENT_NORM: Final = 1.0
"""The usual bound for language models of any size."""
TRIM_EVERY_STEPS: Final = 10
"""Batches of ever new shapes leave holes: 31 million weights took 24 GB after half an hour on a CPU."""
CHECKPOINT_EVERY_S: Final = 120.0
"""Maximum training time that an interruption loses."""

MALLOC_TRIM_THRESHOLD: Final = -1
MALLOC_MMAP_THRESHOLD: Final = -3
"""glibc's numbers of the two options (malloc.h)."""
MOST_KEPT_BYTES: Final = 1 << 30
"""Far above the size of any block."""

log = logging.getLogger(__name__)

_Batch = TypeVar("_Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Learning rate and budgets of a run, which ends when the first budget is used up."""

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    budget_steps: float = math.inf
    budget_minutes: float = math.inf
    report_every_steps: int = 50

    def progress(self, steps: int, minutes: float) -> float:
        """Return the share of the budget that is used up."""
        return max(steps / self.budget_steps, minutes / self.budget_minutes)

    def rate_at(self, step: int, progress: float) -> float:
        """Return the learning rate: linear warm-up times a cosine decay to `LAST_RATE_SHARE`."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * warm * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * cosine)


@dataclass(slots=True)
class Training:
    """The state of a run; `losses` holds the loss of the first step and of every reported one."""

    steps: int = 0
    minutes: float = 0.0
    losses: list[float] = field(default_factory=list)


def computes_in_bfloat16(device: str) -> bool:
    """Return True if training on this type of device does; processors that emulate it are faster in float32."""
    return device != "cpu" or has_fast_bfloat16()


def keep_freed_memory() -> None:
    """Let this process keep large freed blocks, if its C library supports that.

    glibc returns freed blocks above 32 MB, such as logits of a batch, to the system; that halved the speed of
    writing answers.
    """
    with suppress(OSError, AttributeError, ValueError):
        libc = ctypes.CDLL(None)
        for option in (MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD):
            libc.mallopt(option, MOST_KEPT_BYTES)


def train(
    model: torch.nn.Module,
    draw: Callable[[int], _Batch],
    loss_of: Callable[[Any, _Batch], Tensor],
    plan: TrainingPlan,
    *,
    device: str,
    checkpoint: Path | None = None,
    say: Callable[[str], None] = log.info,
) -> Training:
    """Train the model in place, with the batch that `draw` returns for each step, until a budget is used up.

    With a `checkpoint` file the run resumes from it if it exists, and is saved to it regularly.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)
    is_half_precision = computes_in_bfloat16(device)
    run = Training()
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        run = Training(state["steps"], state["minutes"], state["losses"])
    last_s = written_s = time.monotonic()
    while (progress := plan.progress(run.steps, run.minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate_at(run.steps, progress)
        with torch.autocast(device, torch.bfloat16, enabled=is_half_precision):
            loss = loss_of(model, draw(run.steps))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.nn.utils.clip_grad_norm_(model.parameters(), MOST_GRADIENT_NORM)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if run.steps % TRIM_EVERY_STEPS == 0:
            give_back_freed_memory()
        now_s = time.monotonic()
        run.steps, run.minutes, last_s = run.steps + 1, run.minutes + (now_s - last_s) / 60, now_s
        if run.steps == 1 or run.steps % plan.report_every_steps == 0:
            run.losses.append(loss.item())
            left_minutes = run.minutes * max(0.0, 1 / plan.progress(run.steps, run.minutes) - 1)
            said = f"step {run.steps}, minute {run.minutes:.1f}, loss {run.losses[-1]:.3f}"
            say(f"{said}, about {left_minutes:.0f} min left")
        if checkpoint is not None and now_s - written_s > CHECKPOINT_EVERY_S:
            _write(checkpoint, model, optimiser, run)
            written_s = now_s
    if checkpoint is not None:
        _write(checkpoint, model, optimiser, run)
    return run


def _write(file: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, run: Training) -> None:
    partial = file.with_suffix(".partial")
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save({**state, "steps": run.steps, "minutes": run.minutes, "losses": run.losses}, partial)
    partial.rename(file)
