"""The loss of a draft head: along its target's answers, with its own guesses fed back.

From EAGLE-3 (arXiv 2503.01840, section 3.2, "training-time test"). In the first step the head reads every token
with the target's features of the token before, in each further step with its own output of the step before, as in a
draft of that depth. An *anchor* is the last token that the target has processed: in a further step the query of an
anchor attends to the first step's keys up to the anchor, and to the keys of its own earlier steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosine_engine.eagle.draft_head import EagleHead
from cosine_train.training.head_examples import HeadBatch

STEPS: Final = 4
"""Drafts are rarely longer: at an acceptance rate of 0.6 a fifth token is right in 8 %."""
STEP_WEIGHT: Final = 0.8
"""The ratio of a step's weight to that of the step before, by the probability of reaching it."""


class TargetView:
    """The part of a target that a head reads: the inputs of some of its layers, and its token embedding."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        """Observe `layers`; the number of layers names the output of the last."""
        # The default attention of models loaded here keeps all its scores.
        model.set_attn_implementation("sdpa")
        self._model = model
        self._layers = layers
        self._entering: dict[int, Tensor] = {}
        body = model.get_decoder()
        ends = [*body.layers, body.norm]
        for layer in layers:
            ends[layer].register_forward_pre_hook(self._note(layer), with_kwargs=True)

    def _note(self, layer: int) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._entering[layer] = args[0] if args else kwargs["hidden_states"]

        return note

    @torch.no_grad()
    def of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding [rows, tokens, width] of tokens [rows, tokens], and their activations."""
        self._model.base_model(input_ids=tokens, use_cache=False)
        embedded: Tensor = self._model.get_input_embeddings()(tokens)
        return embedded, torch.cat([self._entering[layer] for layer in self._layers], -1)


def unrolled(head: EagleHead, embedded: Tensor, activations: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield the head's output [rows, anchors, width] of each step, for texts of anchors + 1 tokens.

    In step k, counted from 0, anchor a reads the token at a + 1 + k and guesses the next one. The last k anchors of
    a step read padding. `embedded` is [rows, tokens, width]; `activations` have the width of all observed layers.
    """
    anchors = embedded.shape[1] - 1
    feature = head.fuse(activations[:, :-1])
    positions = torch.arange(anchors, device=embedded.device)
    attention = _StepAttention(head, anchors, embedded.device)
    for step in range(steps):
        read = F.pad(embedded[:, 1 + step :], (0, 0, 0, step))
        feature = head(read, feature, head.angles(positions + 1 + step, feature.dtype), attention)
        yield feature


class _StepAttention:
    """The attention of consecutive steps; keys and values of all steps are kept."""

    def __init__(self, head: EagleHead, anchors: int, device: torch.device) -> None:
        self._scale = head.shape.head_width**-0.5
        self._group = head.shape.heads // head.shape.key_heads
        self._is_ahead = torch.ones(anchors, anchors, dtype=torch.bool, device=device).triu(1)
        self._held: list[tuple[Tensor, Tensor]] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Map [rows, anchors, heads, width] each to [rows, anchors, heads * width]."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        self._held.append((key, value))
        (first_keys, first_values), *further = self._held
        if not further:
            output = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale, enable_gqa=True
            )
            return output.transpose(1, 2).flatten(2)
        rows, heads, anchors, width = query.shape
        # Query heads that share a key head are rows of one product.
        shared = query.reshape(rows, heads // self._group, self._group * anchors, width)
        grouped = (rows, heads // self._group, self._group, anchors)
        scores = (shared @ first_keys.transpose(-1, -2) * self._scale).view(*grouped, anchors)
        scores = scores.masked_fill(self._is_ahead, float("-inf"))
        queries = shared.view(*grouped, width)
        own = [(queries * keys[:, :, None]).sum(-1, keepdim=True) * self._scale for keys, _ in further]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        output = weights[..., :anchors].reshape(*shared.shape[:3], anchors) @ first_values
        output = output.view(*grouped, width)
        for place, (_, values) in enumerate(further, anchors):
            output = output + weights[..., place, None] * values[:, :, None]
        return output.reshape(rows, heads, anchors, width).transpose(1, 2).flatten(2)


def head_loss(head: EagleHead, target: TargetView, batch: HeadBatch, steps: int = STEPS) -> Tensor:
    """Return the cross-entropy of all steps with the target's distribution over the tokens that the head knows."""
    embedded, activations = target.of(batch.tokens)
    losses = []
    for step, output in enumerate(unrolled(head, embedded, activations, steps)):
        likely, chances = batch.likely[:, 1 + step :], batch.chances[:, 1 + step :]
        is_told = chances.sum(-1) > 0
        logits = head.logits(output[:, : likely.shape[1]][is_told])
        loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            logits, likely[is_told].clamp(min=0), chances[is_told]
        )
        losses.append(STEP_WEIGHT**step * loss)
    return torch.stack(losses).sum()


class _CrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of `logits` [places, tokens] with the `chances` [places, k] of the tokens `likely`.

    Except for sums it is computed in the logits' 16 bits: PyTorch's function makes several copies in float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, likely: Tensor, chances: Tensor) -> Tensor:
        most = logits.amax(-1, keepdim=True)
        shares = (logits - most).exp_()
        sums = shares.sum(-1, keepdim=True, dtype=torch.float32)
        shares.div_(sums.to(shares.dtype))
        ctx.save_for_backward(shares, likely, chances)
        logs = (logits.gather(-1, likely) - most).float() - sums.log()
        return (logs * chances).sum() / -max(1, len(logits))

    @staticmethod
    def backward(ctx: Any, *grown: Tensor) -> tuple[Tensor, None, None]:
        shares, likely, chances = ctx.saved_tensors
        scale = grown[0] / max(1, len(shares))
        gradient = shares * (chances.sum(-1, keepdim=True) * scale).to(shares.dtype)
        gradient.scatter_add_(-1, likely, (-chances * scale).to(gradient.dtype))
        return gradient, None, None


@torch.inference_mode()
def right_steps(
    head: EagleHead, target: TargetView, prompt: Sequence[int], tokens: Sequence[int], steps: int
) -> list[tuple[int, int]]:
    """Return for each step the right best guesses after only right ones, and their total number.

    The guesses along an answer are greedy, whatever its sampling.
    """
    where = head.fc.weight.device
    text = torch.tensor([[*prompt, *tokens]], device=where)
    embedded, activations = target.of(text[:, :-1])
    ids = torch.tensor(head.vocabulary.target_ids, device=where)
    # The anchor before the last token of the prompt guesses the answer's first one.
    first = len(prompt) - 2
    is_alive = torch.ones(len(tokens), dtype=torch.bool, device=where)
    found = []
    for step, output in enumerate(unrolled(head, embedded.to(head.dtype), activations.to(head.dtype), steps)):
        asked = is_alive[: max(0, len(tokens) - step)]
        guesses = ids[head.logits(output[0, first : first + len(asked)]).argmax(-1)]
        is_right = guesses == text[0, first + 2 + step :]
        is_alive = asked & is_right
        found.append((int(is_alive.sum()), int(asked.sum())))
    return found
