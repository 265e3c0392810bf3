"""The loss and the batches of a drafter's training, and the measuring of drafters."""

import pytest
import torch
import transformers as tf
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


def test_padding_changes_no_loss() -> None:
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(
            vocab_size=6, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
    )
    short = Example.of(answer((40,), likely=[[(40, 0.5)]]), KNOWN)
    long = Example.of(answer((41, 1, 2, 3), likely=[[(41, 0.9)], [(1, 0.8)], [(2, 0.7)], [(3, 0.6)]]), KNOWN)

    def alone(example: Example) -> float:
        mix = ExampleMix([example], shares={}, rows=1, seed=0, device="cpu")
        return distillation_loss(model, mix.batch(0)).item() * len(example.likely)

    mixed = ExampleMix([short, long], shares={}, rows=2, seed=0, device="cpu")
    drawn = next(batch for step in range(99) if len((batch := mixed.batch(step)).likely) == 5)
    assert distillation_loss(model, drawn).item() * 5 == pytest.approx(alone(short) + alone(long), abs=1e-4)
