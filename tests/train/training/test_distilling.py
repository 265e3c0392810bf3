"""The loss and the batches of a drafter's training, and the measuring of drafters."""

import pytest
import torch
from torch import Tensor

from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.distilling import Batch, Example, ExampleMix, distillation_loss
from tests.train.training.samples import answer

KNOWN = DraftVocabulary((1, 2, 3, 40, 41))


class Fixed(torch.nn.Module):
    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self._head = torch.nn.Linear(1, len(logits), bias=False)
        self._head.weight.data = torch.tensor(logits)[:, None]

    def base_model(self, input_ids: Tensor, use_cache: bool) -> tuple[Tensor]:
        return (torch.ones(*input_ids.shape, 1),)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self._head


def batch_of(*likely: list[tuple[int, float]], tokens: tuple[int, ...]) -> Batch:
    example = Example.of(answer(tokens, likely=list(likely) if likely else None), KNOWN)
    return ExampleMix([example], shares={}, rows=1, seed=0, device="cpu").batch(0)


def test_the_loss_is_the_cross_entropy_with_known_tokens_and_all_others_as_one() -> None:
    model = Fixed([1.0, 0.5, -1.0, 2.0, 0.0, 0.25])
    logs = torch.tensor([1.0, 0.5, -1.0, 2.0, 0.0, 0.25]).log_softmax(-1)
    # Token 99 is unknown; with the remaining probability it joins all tokens that are not named.
    loss = distillation_loss(model, batch_of([(40, 0.5), (99, 0.2), (41, 0.1)], tokens=(40,)))
    others = logs[[0, 1, 2, 5]].logsumexp(-1)
    assert loss.item() == pytest.approx(-(0.5 * logs[3] + 0.1 * logs[4] + 0.4 * others).item(), abs=1e-3)
    # The loss of a text alone uses its tokens.
    loss = distillation_loss(model, batch_of(tokens=(40, 99)))
    unknown = logs[[0, 1, 2, 3, 4, 5]].logsumexp(-1)
    assert loss.item() == pytest.approx(-(logs[3] + unknown).item() / 2, abs=1e-5)
