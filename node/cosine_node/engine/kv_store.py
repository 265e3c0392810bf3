"""The tensors of the KV pool, one pair a layer."""

from typing import NamedTuple

import torch
from torch import Tensor


class LayerPages(NamedTuple):
    """Keys [1, heads, slots, key width] and values [1, heads, slots, value width] of one layer.

    In memory all heads of a slot come one after the other: writing and gathering slots copies whole rows.
    """

    keys: Tensor
    values: Tensor


class KvStore:
    """Keys and values of every slot, and a spare one. A layer's shape is known when its attention first runs.

    The engine runs one token through the model when it is built, so all memory is taken then and never grows.
    """

    def __init__(self, *, slots: int) -> None:
        self.slots = slots
        self._layers: dict[int, LayerPages] = {}
        # What gave each layer its shape, a token's keys and values: held, for then no other tensor is the same.
        self._first: list[tuple[Tensor, Tensor, LayerPages]] = []

    @property
    def spare_slot(self) -> int:
        """The slot that a pass writes what nobody will read to."""
        return self.slots

    @property
    def token_bytes(self) -> int:
        """Memory that a token takes in all layers."""
        return self.bytes // (self.slots + 1)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    def layer(self, index: int, key: Tensor, value: Tensor) -> LayerPages:
        """One layer's pages; `key` and `value` [1, heads, tokens, width] give their shape the first time.

        Keys that are values as well are stored once. So are those of layers that share them (Gemma 3n): the same
        tensors, when they first come.
        """
        pages = self._layers.get(index)
        if pages is None:
            shared = (found for keys, values, found in self._first if keys is key and values is value)
            pages = next(shared, None)
            if pages is None:
                keys = self._zeros(key)
                pages = LayerPages(keys, keys if value is key else self._zeros(value))
            self._layers[index] = pages
            self._first.append((key, value, pages))
        return pages

    def clear(self, slots: Tensor) -> None:
        """Fill these slots of all layers with zeros."""
        for stored in self._tensors:
            stored.index_fill_(2, slots, 0)

    @property
    def _tensors(self) -> list[Tensor]:
        """The tensors of all layers, each once."""
        return list({id(tensor): tensor for layer in self._layers.values() for tensor in layer}.values())

    @property
    def shapes(self) -> set[tuple[int, int, int]]:
        """The heads, key width and value width that layers have."""
        return {(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in self._layers.values()}

    def _zeros(self, like: Tensor) -> Tensor:
        # One slot more than the pool has: the spare one.
        shape = (1, self.slots + 1, like.shape[1], like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
