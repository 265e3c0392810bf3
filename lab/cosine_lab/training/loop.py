"""The losses of the family's training; the loop itself is the node's (`cosine_node.training.loop`)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[torch.nn.Module, Tensor], Tensor]


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


@torch.no_grad()
def loss_per_token(model: torch.nn.Module, windows: Tensor, device: str) -> float:
    """The mean loss on held-out windows."""
    model.eval()
    with torch.autocast(device, torch.bfloat16):
        return next_token_loss(model, windows).item()
