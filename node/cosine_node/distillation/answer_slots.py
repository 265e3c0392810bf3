"""Keys and values of answers under way, one slot an answer, and the attention of a model that writes many at once.

The engine serves trees of strangers' requests exactly. Here nothing but plain chains is wanted, and soon: one
product over all slots in place of a call for each.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from cosine_protocol.errors import UsageError

ATTENTION_NAME: Final = "cosine_answer_slots"
"""The name under which a model's configuration asks for this attention."""
BLOCK_TOKENS: Final = 64
"""A choice: room grows by so many tokens. Products over all of the room need no copy, unlike those over a part."""


class AnswerSlots:
    """Room for `slots` answers, their prompts included, which grows with the longest of them.

    Within `filling` a pass feeds prompts, from position 0, to some slots; otherwise one token to every slot, at its
    place in `positions` [slots].
    """

    def __init__(self, *, slots: int, device: torch.device) -> None:
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self._slots = torch.arange(slots, device=device)
        self._filled: Tensor | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def filling(self, slots: Sequence[int]) -> Iterator[None]:
        """Let the rows of a pass be prompts of these slots."""
        self._filled = torch.tensor(slots, device=self._slots.device)
        yield
        self._filled = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
        """Write keys and values; the attention [rows, tokens, heads, width].

        Query, key and value are [rows, heads, tokens, width].
        """
        longest = key.shape[2] if self._filled is not None else int(self.positions.max()) + 1
        keys, values = self._room(layer, key, value, longest)
        if self._filled is not None:
            keys[self._filled, :, : key.shape[2]] = key
            values[self._filled, :, : value.shape[2]] = value
            is_grouped = query.shape[1] != key.shape[1]
            output = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped
            )
            return output.transpose(1, 2)
        rows, heads, _, width = query.shape
        keys[self._slots, :, self.positions] = key[:, :, 0]
        values[self._slots, :, self.positions] = value[:, :, 0]
        is_ahead = torch.arange(keys.shape[2], device=query.device) > self.positions[:, None]
        grouped = query.view(rows, key.shape[1], heads // key.shape[1], width)
        scores = grouped @ keys.transpose(-1, -2) * scale
        weights = scores.masked_fill_(is_ahead[:, None, None], float("-inf")).softmax(-1)
        return (weights @ values).view(rows, 1, heads, -1)

    def _room(self, layer: int, key: Tensor, value: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer, [slots, heads, at least `tokens`, width] each."""
        held = self._layers.get(layer)
        if held is not None and held[0].shape[2] >= tokens:
            return held
        capacity = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        rooms = [part.new_zeros(len(self._slots), part.shape[1], capacity, part.shape[3]) for part in (key, value)]
        for room, part in zip(rooms, held or (), strict=False):
            room[:, :, : part.shape[2]] = part
        self._layers[layer] = (rooms[0], rooms[1])
        return self._layers[layer]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    slots: AnswerSlots,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over `slots`, as transformers calls it. Raises `UsageError` for another kind of it."""
    others = (
        attention_mask,
        *(extra.get(name) for name in ("sliding_window", "softcap", "s_aux", "position_bias")),
    )
    if any(other is not None for other in others):
        raise UsageError("The target has an attention of its own, which cannot be batched here; ask it in a swarm.")
    layer: Any = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = slots.attend(layer, query, key, value, scale=scale)
    return output.reshape(*output.shape[:2], -1), None


AttentionInterface.register(ATTENTION_NAME, slot_attention)
