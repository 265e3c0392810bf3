"""The tensors of the KV pool, one pair per layer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cosine_engine.kv_pool import PAGE_TOKENS, Integers, WindowPages
from cosine_engine.pool_size import TokenBytes
from cosine_protocol.errors import LocalProtocolError


class LayerPages(NamedTuple):
    """Keys [1, heads, slots, key width] and values [1, heads, slots, value width] of one layer.

    In memory, all heads of a slot are adjacent, so that writing and gathering slots copies whole rows.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's pages and its sliding window, if any."""

    pages: LayerPages
    window: int | None


class KvStore:
    """Keys and values of every slot, and of a spare one after them, from which nothing is read.

    Layers with a sliding window have the slots of `windows` instead, if given, and a spare page. A layer's tensors
    are allocated when its attention first runs. The engine runs one token at construction, so that all memory is
    allocated then and never grows.
    """

    def __init__(self, *, slots: int, windows: WindowPages | None = None) -> None:
        self.slots = slots
        self.windows = windows
        self._layers: dict[int, _Layer] = {}
        # The keys and values that each layer was allocated for, kept so that no other tensor gets their identity.
        self._first: list[tuple[Tensor, Tensor, _Layer]] = []

    @property
    def token_bytes(self) -> TokenBytes:
        """Memory of a token in all layers, and in those with a window."""
        windowed = [layer for layer in self._layers.values() if layer.window is not None]
        return TokenBytes(
            _slot_bytes(self._layers.values()),
            windowed=_slot_bytes(windowed),
            window_tokens=max((layer.window or 0 for layer in windowed), default=0),
        )

    def window_slots(self, slots: Integers) -> Integers:
        """Return these slots as numbered in layers with a window."""
        return slots if self.windows is None else self.windows.slots_of(slots)

    def layer(self, index: int, key: Tensor, value: Tensor, *, window: int | None = None) -> LayerPages:
        """Return one layer's pages, allocated at first for `key` and `value` [1, heads, tokens, width].

        If key and value are the same tensor, it is stored once. Layers that pass the same tensors at first share
        their pages (Gemma 3n). Raises `LocalProtocolError` if the layer's window has changed.
        """
        layer = self._layers.get(index)
        if layer is None:
            shared = (
                found
                for keys, values, found in self._first
                if keys is key and values is value and found.window == window
            )
            layer = next(shared, None)
            if layer is None:
                slots = self.slots + 1
                if window is not None and self.windows is not None:
                    slots = self.windows.slots + PAGE_TOKENS
                keys = _zeros(key, slots)
                layer = _Layer(LayerPages(keys, keys if value is key else _zeros(value, slots)), window)
            self._layers[index] = layer
            self._first.append((key, value, layer))
        if layer.window != window:
            raise LocalProtocolError(f"Layer {index} has a window of {window} tokens; it was {layer.window}.")
        return layer.pages

    def part(self, *, first_slot: int, slots: int) -> "KvStore":
        """Return a store over some of the slots, numbered from 0, without a spare slot, once layers are allocated.

        Raises `LocalProtocolError` for slots that do not exist, and if this store has windows.
        """
        if self.windows is not None or not 0 <= first_slot <= self.slots - slots:
            raise LocalProtocolError(f"The store has no {slots} slots from slot {first_slot}, or it has windows.")
        found = KvStore(slots=slots)
        parts: dict[int, Tensor] = {}
        for index, layer in self._layers.items():
            for stored in layer.pages:
                parts.setdefault(id(stored), stored.narrow(2, first_slot, slots))
            keys, values = (parts[id(stored)] for stored in layer.pages)
            found._layers[index] = _Layer(LayerPages(keys, values), layer.window)
        return found

    def clear(self, slots: Integers) -> None:
        """Fill these slots of all layers with zeros."""
        for is_windowed, where in ((False, slots), (True, self.window_slots(slots))):
            for stored in _tensors(
                layer for layer in self._layers.values() if (layer.window is not None) == is_windowed
            ):
                stored.index_fill_(2, torch.from_numpy(where).to(stored.device), 0)

    @property
    def shapes(self) -> set[tuple[int, int, int]]:
        """The key heads, key width and value width of the layers."""
        layers = (layer.pages for layer in self._layers.values())
        return {(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in layers}


def _tensors(layers: Iterable[_Layer]) -> list[Tensor]:
    """Return the distinct tensors of layers."""
    return list({id(tensor): tensor for layer in layers for tensor in layer.pages}.values())


def _slot_bytes(layers: Iterable[_Layer]) -> int:
    return sum(tensor.nbytes // tensor.shape[2] for tensor in _tensors(layers))


def _zeros(like: Tensor, slots: int) -> Tensor:
    shape = (1, slots, like.shape[1], like.shape[3])
    return torch.zeros(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
