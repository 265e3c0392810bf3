"""The index tensors of one packed pass: the slots that its tokens write and read, and the attention masks.

A plan is built once per pass and shared by all layers. Without a sliding window, every key of a call is an ancestor
of one of its queries. With a window, keys further back than the window are left out as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_engine.base import PREFIX, PassAbandoned, Row
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.row_tiles import RowTiles, RowTileSet
from cosine_engine.kv_pool import PAGE_TOKENS, Integers
from cosine_engine.tree import FedNode, Feeds, SequenceTree
from cosine_protocol.request import Sampling

Booleans = npt.NDArray[np.bool_]

ALIGNED_KEYS: Final = 64
"""Attention kernels require mask widths that are a multiple of a power of two."""
MAX_PADDED_QUERIES: Final = 16
"""Rows of at most this many tokens are padded to one rectangle; a longer row fills a GPU by itself."""
KEY_QUANTUM: Final = PAGE_TOKENS
"""In deterministic mode, the number of keys of a query is padded to a multiple of this. It is a page, so that a run
of slots can be read in place to the end of its last page."""


def separate_feed(tokens: Sequence[int]) -> tuple[SequenceTree, Row]:
    """Return tokens as the only row of a new sequence, in the slots from 0 on."""
    tree, row = SequenceTree(sampling=Sampling(), prompt_tokens=0), Row.chain(0, tokens)
    tree.add(row, range(len(tokens)))
    return tree, row


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """The keys and queries of one row of a pass.

    A token of a tree sees the kept prefix, its ancestors and itself (tree attention, SpecInfer, arXiv 2305.09781).
    `key_slots` and `key_indices` [keys] are pool slots and absolute indices in the sequence, `query_indices`
    [queries] the absolute indices of the row's tokens. `visible` [queries, keys] is True for keys that a query
    sees, or None for a single query that sees all.
    """

    key_slots: Integers
    key_indices: Integers
    query_indices: Integers
    visible: Booleans | None

    def within(self, window: int | None) -> "AttentionMask":
        """Return the mask with keys further back than `window` tokens hidden, without keys that no query sees."""
        if window is None or int(self.query_indices.max()) < window:
            return self
        near = self.key_indices[None, :] > self.query_indices[:, None] - window
        visible = near if self.visible is None else near & self.visible
        needed = visible.any(0)
        remaining = visible[:, needed]
        return AttentionMask(
            self.key_slots[needed],
            self.key_indices[needed],
            self.query_indices,
            None if remaining.all() else remaining,
        )


def mask_of(tree: SequenceTree, row: Row) -> AttentionMask:
    """Return the mask of a row that is already in its tree.

    Its keys are the prefix, the row's ancestors among the nodes, and the row itself, in this order. Other branches
    of the tree are left out.
    """
    own = [tree.nodes[name] for name in row.nodes]
    if row.is_chain:
        return _mask(tree, [*tree.path(row.parents[0]), *own], len(own))
    ancestors, below = _branching(tree, row)
    return _mask(tree, [*ancestors, *own], len(own), below)


def _mask(
    tree: SequenceTree, nodes: Sequence[FedNode], queries: int, below: Booleans | None = None
) -> AttentionMask:
    """Return the mask of the last `queries` nodes.

    They see the prefix, and the nodes that `below` [queries, nodes] selects. Default: all earlier nodes.
    """
    prefix = len(tree.slots)
    slots = np.array([*tree.slots, *(node.slot for node in nodes)], dtype=np.int64)
    indices = np.array([node.index for node in nodes], dtype=np.int64)
    indices = np.concatenate([np.arange(prefix, dtype=np.int64), indices])
    before = len(slots) - queries
    visible = None
    if below is not None:
        visible = np.concatenate([np.ones((queries, prefix), dtype=np.bool_), below], axis=1)
    elif queries > 1:
        visible = np.tri(queries, len(slots), before, dtype=np.bool_)
    return AttentionMask(slots, indices, indices[before:], visible)


def _branching(tree: SequenceTree, row: Row) -> tuple[list[FedNode], Booleans]:
    """Return the ancestors of a branching row outside it, and a mask of what each token sees.

    The mask is [tokens, ancestors + tokens].
    """
    rank = {name: i for i, name in enumerate(row.nodes)}
    outside = [parent for parent in row.parents if parent != PREFIX and parent not in rank]
    paths = {parent: tree.path(parent) for parent in dict.fromkeys(outside)}
    # Paths share their beginnings; a slot identifies a node.
    ancestors = list({node.slot: node for path in paths.values() for node in path}.values())
    column = {node.slot: i for i, node in enumerate(ancestors)}
    visible = np.zeros((len(row.nodes), len(ancestors) + len(row.nodes)), dtype=np.bool_)
    for i, parent in enumerate(row.parents):
        if parent in rank:
            visible[i] = visible[rank[parent]]
        elif parent != PREFIX:
            visible[i, [column[node.slot] for node in paths[parent]]] = True
        visible[i, len(ancestors) + i] = True
    return ancestors, visible


def quantum_end(keys: int) -> int:
    """Return a number of keys rounded up to a multiple of `KEY_QUANTUM`."""
    return -(-keys // KEY_QUANTUM) * KEY_QUANTUM


def path_parts(tree: SequenceTree, row: Row, *, first_query: int) -> list[tuple[Integers, AttentionMask]]:
    """Cut a row that is already in its tree into parts of paths: their query numbers in the pass, and their masks.

    A path leads from the beginning of the sequence to a leaf of the row. Its queries are the tokens of the row that
    no earlier path contains. The keys of a part are all tokens of the path up to its last query, in path order; it
    ends where the `quantum_end` of its keys does.
    """
    # A slot identifies a node.
    number = {tree.nodes[name].slot: first_query + i for i, name in enumerate(row.nodes)}
    inner = set(row.parents)
    found = []
    for leaf in (name for name in row.nodes if name not in inner):
        path = tree.path(leaf)
        queries = [number.pop(node.slot) for node in path if node.slot in number]
        before = len(path) - len(queries)
        first = before
        while first < len(path):
            last = min(len(path), quantum_end(len(tree.slots) + first + 1) - len(tree.slots))
            numbers = np.array(queries[first - before : last - before], dtype=np.int64)
            found.append((numbers, _mask(tree, path[:last], last - first)))
            first = last
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The size of a rectangular kernel call: sequences, queries per sequence and keys per sequence."""

    sequences: int
    queries: int
    keys: int

    @classmethod
    def around(cls, masks: Sequence[AttentionMask]) -> "BatchShape":
        """Return the smallest shape that holds these rows."""
        keys = max(len(mask.key_slots) for mask in masks)
        return cls(
            sequences=len(masks),
            queries=max(len(mask.query_indices) for mask in masks),
            keys=-(-keys // ALIGNED_KEYS) * ALIGNED_KEYS,
        )

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


MAX_CAPTURED_TOKENS: Final = 16
"""Passes of more tokens are compute-bound and do not benefit from a CUDA graph. On an H200, a model of 8 billion
weights takes 7.2 to 7.9 ms for 1 to 16 tokens in a graph and 11.9 to 12.3 without, 19.5 and 12.1 for 64."""


def bucket_of(shape: BatchShape) -> BatchShape | None:
    """Return the shape bucket that holds a shape; None above `MAX_CAPTURED_TOKENS`.

    A CUDA graph has a fixed shape, so a pass of few tokens is padded to the next larger bucket. Sequences and
    queries are rounded up to powers of two. Keys may also be three quarters of a power of two, since they are most
    of the memory that a pass reads.
    """
    # Shorter contexts share a bucket.
    keys = max(shape.keys, 128)
    power = _power_of_two(keys)
    bucket = BatchShape(
        sequences=_power_of_two(shape.sequences),
        queries=_power_of_two(shape.queries),
        keys=power * 3 // 4 if keys <= power * 3 // 4 else power,
    )
    return bucket if bucket.tokens <= MAX_CAPTURED_TOKENS else None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Pool `slots` [sequences, keys], and a mask `hidden` [sequences, queries, keys] that is True for hidden keys.

    `token_indices` [tokens] are the places of the rows' tokens in [sequences * queries].
    """

    slots: Integers
    hidden: Booleans
    token_indices: Integers


def pad(masks: Sequence[AttentionMask], shape: BatchShape) -> PaddedRows:
    """Pad rows to a rectangle of a shape that holds them.

    A padding query sees only the first key of its sequence, or of the first sequence: the softmax over no visible
    key would be NaN.
    """
    slots = np.full((shape.sequences, shape.keys), masks[0].key_slots[0], dtype=np.int64)
    hidden = np.ones((shape.sequences, shape.queries, shape.keys), dtype=np.bool_)
    hidden[:, :, 0] = False
    for number, mask in enumerate(masks):
        queries, keys = len(mask.query_indices), len(mask.key_slots)
        slots[number, :keys] = mask.key_slots
        slots[number, keys:] = mask.key_slots[0]
        hidden[number, :queries, :keys] = False if mask.visible is None else ~mask.visible
    return PaddedRows(slots, hidden, padded_indices(masks, shape))


def padded_indices(masks: Sequence[AttentionMask], shape: BatchShape) -> Integers:
    """Return the places [tokens] of the rows' tokens in [sequences * queries] of a shape."""
    rows = [np.arange(len(mask.query_indices)) + number * shape.queries for number, mask in enumerate(masks)]
    return np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class Indices:
    """Slots, or tokens of a pass: a contiguous run, which is read without a copy, or else an index tensor."""

    start: int
    count: int
    index: Tensor | None = None

    @classmethod
    def of(cls, numbers: Integers, device: torch.device) -> "Indices":
        first, count = int(numbers[0]), len(numbers)
        is_run = np.array_equal(numbers, np.arange(first, first + count))
        return cls(first, count, None if is_run else torch.from_numpy(numbers).to(device))

    def part(self, first: int, count: int) -> "Indices":
        """Return `count` of them from number `first` on."""
        if self.index is None:
            return Indices(self.start + first, count)
        return Indices(self.start, count, self.index.narrow(0, first, count))


@dataclass(eq=False, slots=True)
class AttentionCall:
    """The inputs of one call of the attention kernel: `sequences` sequences of equally many queries and keys.

    `queries` are tokens of the pass and `slots` the slots of the keys, sequence after sequence. `hidden`
    [sequences, queries, keys] is True where a query must not see a key, or None for a single query that sees all.
    """

    queries: Indices
    slots: Indices
    sequences: int
    hidden: Tensor | None
    _biases: dict[tuple[torch.dtype, int], Tensor] = field(default_factory=dict)

    @property
    def is_one(self) -> bool:
        """True for a single query, as in plain decoding."""
        return self.sequences == 1 and self.queries.count == 1 and self.queries.index is None

    def bias(self, dtype: torch.dtype, group: int, *, tiles: RowTiles | None = None) -> Tensor | None:
        """Return the additive mask [sequences, 1, group * queries, keys]; None for a single query that sees all.

        It is made once for all layers. `group` is the number of query heads per key head. Rows that pad the mask
        for `tiles` see all keys: the softmax over no visible key would be NaN.
        """
        if self.hidden is None:
            return None
        found = self._biases.get((dtype, group))
        if found is None:
            bias = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
            bias.masked_fill_(self.hidden, float("-inf"))
            found = bias.repeat(1, group, 1)[:, None]
            if tiles is not None:
                found = tiles.pad(found)
            self._biases[dtype, group] = found
        return found

    def pieces(self, most_queries: int) -> "list[tuple[slice, AttentionCall]]":
        """Return the call in pieces of at most `most_queries` queries, each with its range of sequences."""
        if self.hidden is None or self.hidden.shape[0] * self.hidden.shape[1] <= most_queries:
            return [(slice(0, self.sequences), self)]
        queries, keys = self.hidden.shape[1:]
        # A piece is whole sequences, or some queries of one sequence, so that outputs can be concatenated.
        sequences, step = max(1, most_queries // queries), min(most_queries, queries)
        found = []
        for first in range(0, self.sequences, sequences):
            place = slice(first, min(first + sequences, self.sequences))
            count = place.stop - first
            for start in range(0, queries, step):
                length = min(step, queries - start)
                piece = AttentionCall(
                    self.queries.part(first * queries + start, (count - 1) * queries + length),
                    self.slots.part(first * keys, count * keys),
                    sequences=count,
                    hidden=self.hidden[place, start : start + length],
                )
                found.append((place, piece))
        return found


@dataclass(frozen=True, slots=True)
class PassCalls:
    """Attention calls, and the place of each token among all their queries; None if that is the pass's order."""

    calls: tuple[AttentionCall, ...]
    order: Tensor | None


class DecoderPlan(Protocol):
    """The inputs of a decoder and its attention in one pass."""

    store: KvStore

    @property
    def input_ids(self) -> Tensor:
        """Token ids [1, tokens]."""

    @property
    def position_ids(self) -> Tensor:
        """Positions of the tokens [1, tokens]."""

    @property
    def written(self) -> Indices:
        """Slots of the pass's tokens. The pass may have more tokens, as padding."""

    @property
    def window_written(self) -> Indices:
        """Their slots in layers with a sliding window."""

    @property
    def attention_tiles(self) -> RowTiles | None:
        """The row tiles of attention in deterministic mode, else None."""
        return None

    def check(self) -> None:
        """Raise `PassAbandoned` if the pass was abandoned. Every layer calls this."""

    def calls(self, window: int | None) -> PassCalls:
        """Return the calls with a sliding window of this many tokens, or without one."""


class RowsPlan(DecoderPlan, ABC):
    """A pass over rows that are already in their trees; its calls are made once for each window."""

    def __init__(
        self,
        feeds: Feeds,
        *,
        store: KvStore,
        device: torch.device,
        is_abandoned: Callable[[], bool],
        padding: int = 0,
    ) -> None:
        """`padding` is the number of copies of the last token that follow the tokens."""
        tokens = [token for _, row in feeds for token in row.tokens]
        nodes = [tree.nodes[name] for tree, row in feeds for name in row.nodes]
        self.tokens = tokens + tokens[-1:] * padding
        self.positions = np.array([node.index for node in nodes + nodes[-1:] * padding], dtype=np.int64)
        self.slots = np.array([node.slot for node in nodes], dtype=np.int64)
        self.store = store
        self.device = device
        self._is_abandoned = is_abandoned
        self._calls: dict[int | None, PassCalls] = {}

    @cached_property
    def input_ids(self) -> Tensor:
        return torch.tensor([self.tokens], dtype=torch.int64, device=self.device)

    @cached_property
    def position_ids(self) -> Tensor:
        return torch.from_numpy(self.positions)[None].to(self.device)

    @cached_property
    def written(self) -> Indices:
        return Indices.of(self.slots, self.device)

    @cached_property
    def window_written(self) -> Indices:
        return Indices.of(self.store.window_slots(self.slots), self.device)

    def check(self) -> None:
        if self._is_abandoned():
            raise PassAbandoned("The pass was abandoned.")

    def calls(self, window: int | None) -> PassCalls:
        found = self._calls.get(window)
        if found is None:
            found = self._calls[window] = self._make_calls(window)
        return found

    @abstractmethod
    def _make_calls(self, window: int | None) -> PassCalls: ...

    def _one_call(self, queries: Indices, slots: Indices, hidden: Booleans | None) -> AttentionCall:
        """Return a call of one sequence; `hidden` is [queries, keys]."""
        mask = None if hidden is None else torch.from_numpy(hidden)[None].to(self.device)
        return AttentionCall(queries, slots, sequences=1, hidden=mask)


class PassPlan(RowsPlan):
    """The plan of a pass outside deterministic mode.

    With `pads_rows`, short rows are padded to one rectangle, which a GPU computes in one kernel. Without, each row
    reads its keys in place, which is faster on a CPU.
    """

    def __init__(
        self,
        feeds: Feeds,
        *,
        store: KvStore,
        device: torch.device,
        pads_rows: bool = False,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(feeds, store=store, device=device, is_abandoned=is_abandoned)
        self.masks = [mask_of(tree, row) for tree, row in feeds]
        # Row i has the tokens from _starts[i] to _starts[i + 1].
        self._starts = np.cumsum([0, *(len(mask.query_indices) for mask in self.masks)])
        short = [i for i, mask in enumerate(self.masks) if len(mask.query_indices) <= MAX_PADDED_QUERIES]
        self._padded = short if pads_rows and len(short) > 1 else []
        self._separate = [i for i in range(len(self.masks)) if i not in self._padded]

    @cached_property
    def _order(self) -> Tensor | None:
        if not self._padded:
            return None
        padded = [self.masks[i] for i in self._padded]
        shape = BatchShape.around(padded)
        separate = sum(len(self.masks[i].query_indices) for i in self._separate)
        # The outputs of the rectangle come first, including its padding, then those of the separate rows.
        outputs = np.concatenate([padded_indices(padded, shape), shape.tokens + np.arange(separate)])
        tokens = np.concatenate([self._tokens_of(i) for i in (*self._padded, *self._separate)])
        order = np.empty_like(outputs)
        order[tokens] = outputs
        is_own_order = np.array_equal(order, np.arange(shape.tokens + separate))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def _make_calls(self, window: int | None) -> PassCalls:
        masks = [mask.within(window) for mask in self.masks]
        if window is not None:
            masks = [replace(mask, key_slots=self.store.window_slots(mask.key_slots)) for mask in masks]
        calls = [self._padded_call([masks[i] for i in self._padded])] if self._padded else []
        return PassCalls((*calls, *(self._separate_call(i, masks[i]) for i in self._separate)), self._order)

    def _padded_call(self, masks: Sequence[AttentionMask]) -> AttentionCall:
        shape = BatchShape.around(masks)
        padded = pad(masks, shape)
        # The first token's query pads the rectangle; that output is not used.
        queries = np.zeros(shape.tokens, dtype=np.int64)
        queries[padded.token_indices] = np.concatenate([self._tokens_of(i) for i in self._padded])
        return AttentionCall(
            Indices.of(queries, self.device),
            Indices(0, padded.slots.size, torch.from_numpy(padded.slots).flatten().to(self.device)),
            sequences=shape.sequences,
            hidden=torch.from_numpy(padded.hidden).to(self.device),
        )

    def _separate_call(self, number: int, mask: AttentionMask) -> AttentionCall:
        slots, visible = mask.key_slots, mask.visible
        lowest, highest = int(slots.min()), int(slots.max())
        index = None
        if highest - lowest + 1 != len(slots):
            index = torch.from_numpy(slots).to(self.device)
        elif visible is not None:
            # The run is read in slot order, which may differ from the order of the columns.
            visible = visible[:, np.argsort(slots)]
        queries = Indices(int(self._starts[number]), len(mask.query_indices))
        return self._one_call(queries, Indices(lowest, len(slots), index), None if visible is None else ~visible)

    def _tokens_of(self, number: int) -> Integers:
        return np.arange(self._starts[number], self._starts[number + 1], dtype=np.int64)


class PathPlan(RowsPlan):
    """The plan of a pass in deterministic mode: a token's result depends bit for bit only on its own path.

    Every query reads its keys in the order of their positions, as if its path were alone in the pass, followed by
    hidden keys up to the next multiple of `KEY_QUANTUM`. Thus both the order of summation and the shape of the
    kernel call, except its number of rows, do not depend on the rest of the pass. `RowTiles` handles the number of
    rows: the last token is repeated until the tokens fill a tile of the matrix products. The keys of these copies
    are not written, and their attention output is that of the first token.
    """

    def __init__(
        self,
        feeds: Feeds,
        *,
        store: KvStore,
        device: torch.device,
        tiles: RowTileSet,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        count = sum(len(row.tokens) for _, row in feeds)
        self._padding = tiles.products.padded(count) - count
        super().__init__(feeds, store=store, device=device, is_abandoned=is_abandoned, padding=self._padding)
        self._tiles = tiles
        self._feeds = feeds

    @property
    def attention_tiles(self) -> RowTiles:
        return self._tiles.attention

    def _make_calls(self, window: int | None) -> PassCalls:
        parts: list[tuple[Integers, AttentionMask]] = []
        start = 0
        for tree, row in self._feeds:
            parts += path_parts(tree, row, first_query=start)
            start += len(row.tokens)
        order = np.zeros(start + self._padding, dtype=np.int64)
        order[np.concatenate([queries for queries, _ in parts])] = np.arange(start)
        calls = tuple(self._call(queries, mask, window) for queries, mask in parts)
        return PassCalls(calls, Indices.of(order, self.device).index)

    def _call(self, queries: Integers, mask: AttentionMask, window: int | None) -> AttentionCall:
        keys = len(mask.key_slots)
        key_slots = mask.key_slots if window is None else self.store.window_slots(mask.key_slots)
        padding = quantum_end(keys) - keys
        hidden = np.ones((len(queries), keys + padding), dtype=np.bool_)
        hidden[:, :keys] = False if mask.visible is None else ~mask.visible
        if window is not None:
            # Keys outside the window are hidden, not left out: the others must keep their places.
            hidden[:, :keys] |= mask.key_indices[None, :] <= mask.query_indices[:, None] - window
        # Pages that the window has left behind are read from the spare page; these keys are hidden.
        windows = None if window is None else self.store.windows
        end = self.store.slots if windows is None else windows.slots
        first, count = int(key_slots[0]), keys + padding
        is_run = np.array_equal(key_slots, np.arange(first, first + keys))
        index = None
        # Whole pages in a run are read in place to the end of the last one.
        if not is_run or first % PAGE_TOKENS or first + count > end or count != quantum_end(keys):
            index = torch.from_numpy(np.concatenate([key_slots, np.full(padding, first)])).to(self.device)
        return self._one_call(Indices.of(queries, self.device), Indices(first, count, index), hidden)


def stale_slots(feeds: Feeds) -> Integers:
    """Return the unused slots of the pages that a pass begins, which must be cleared.

    Hidden keys are multiplied by 0, and a previous owner's leftovers may be NaN.
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
