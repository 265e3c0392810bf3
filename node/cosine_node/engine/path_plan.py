"""A pass in which a token's result depends on its own path only, bit for bit: the plan of deterministic mode.

Every query finds its keys in the order of their positions, as if its path were alone, followed by none or by hidden
ones up to a multiple of `KEY_QUANTUM`. Sums then run in the same order whatever else is in the pass.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.attention_mask import AttentionMask, Integers, masks_by_path
from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.pass_plan import AttentionCall, Indices, RowsPlan
from cosine_node.engine.row_tiles import RowTiles, RowTileSet
from cosine_node.engine.tree import SequenceTree

KEY_QUANTUM: Final = PAGE_TOKENS
"""Where all keys together are such a multiple, hidden ones at the end change no bit of PyTorch's attention on a CPU
(measured in three dtypes and four shapes); and a run of slots may be read on to the end of its page."""


class PathPlan(RowsPlan):
    """Implements `DecoderPlan` for rows that are in their trees already, padded to the row tiles of products.

    The padding repeats the last token. Its keys are not written, and its attention is the first token's.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[SequenceTree, Row]],
        *,
        store: KvStore,
        device: torch.device,
        tiles: RowTileSet,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        tokens = [token for _, row in feeds for token in row.tokens]
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        positions = [node.index for node in nodes]
        self._padding = tiles.products.padded(len(tokens)) - len(tokens)
        super().__init__(
            tokens=tokens + tokens[-1:] * self._padding,
            positions=np.array(positions + positions[-1:] * self._padding, dtype=np.int64),
            slots=np.array([node.slot for node in nodes], dtype=np.int64),
            store=store,
            device=device,
            is_abandoned=is_abandoned,
        )
        self.attention_tiles: RowTiles = tiles.attention
        # The paths of all rows, each with the numbers of its queries in the pass.
        self._paths: list[tuple[Integers, AttentionMask]] = []
        start = 0
        for tree, row in feeds:
            self._paths += [(start + queries, mask) for queries, mask in masks_by_path(tree, row)]
            start += len(row.tokens)

    @cached_property
    def order(self) -> Tensor | None:
        queries = np.concatenate([numbers for numbers, _ in self._paths])
        order = np.zeros(len(queries) + self._padding, dtype=np.int64)
        order[queries] = np.arange(len(queries))
        is_own_order = np.array_equal(order, np.arange(len(queries)))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def _make_calls(self, window: int | None) -> list[AttentionCall]:
        return [self._call(queries, mask, window) for queries, mask in self._paths]

    def _call(self, queries: Integers, mask: AttentionMask, window: int | None) -> AttentionCall:
        key_slots = mask.key_slots if window is None else self.store.window_slots(mask.key_slots)
        keys = len(key_slots)
        padding = -keys % KEY_QUANTUM
        visible = np.ones((len(queries), keys), dtype=np.bool_) if mask.visible is None else mask.visible
        if window is not None:
            # Keys outside the window are hidden, not left out: the others must stay where they are.
            visible = visible & (mask.key_indices[None, :] > mask.query_indices[:, None] - window)
        hidden = np.ones((len(queries), keys + padding), dtype=np.bool_)
        hidden[:, :keys] = ~visible
        # A page that was left behind is read as the spare one, which hides as well.
        first = int(key_slots[0])
        is_run = np.array_equal(key_slots, np.arange(first, first + keys))
        windows = None if window is None else self.store.windows
        limit = self.store.slots if windows is None else windows.slots
        if is_run and first % PAGE_TOKENS == 0 and first + keys + padding <= limit:
            slots = Indices(first, keys + padding)
        else:
            padded = np.concatenate([key_slots, np.full(padding, first)])
            slots = Indices(first, keys + padding, torch.from_numpy(padded).to(self.device))
        return AttentionCall(
            Indices.of(queries, self.device),
            slots,
            sequences=1,
            hidden=torch.from_numpy(hidden)[None].to(self.device),
        )


def stale_slots(feeds: Sequence[tuple[SequenceTree, Row]]) -> Integers:
    """The slots of pages that a pass begins, apart from those in use.

    Hidden keys are multiplied by 0, which what a former owner left there might not survive: it may be NaN.
    """
    found = []
    for tree, row in feeds:
        own = set(row.nodes)
        begun = [slot for name in row.nodes if (slot := tree.nodes[name].slot) % PAGE_TOKENS == 0]
        if begun:
            live = [node.slot for name, node in tree.nodes.items() if name not in own]
            pages = np.add.outer(np.array(begun, dtype=np.int64), np.arange(PAGE_TOKENS)).ravel()
            found.append(np.setdiff1d(pages, np.concatenate([np.array(tree.slots, dtype=np.int64), live])))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)
