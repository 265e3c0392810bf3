"""The index tensors of one packed pass: what each sequence's tokens write, read, and are masked from.

Built once a pass and shared by all layers. Without a window every key of a call is an ancestor of one of its
queries; with one, keys further back than the window are left out as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet
from cosine_node.engine.tree import FedNode, SequenceTree

Feeds = Sequence[tuple[SequenceTree, Row]]
"""The rows of a pass, each in its tree already."""
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

ALIGNED_KEYS: Final = 64
"""Kernels want the width of a mask to be a multiple of some power of two."""
MAX_PADDED_QUERIES: Final = 16
"""Rows of up to so many tokens are padded to one rectangle; longer ones keep a GPU busy alone."""
KEY_QUANTUM: Final = PAGE_TOKENS
"""In deterministic mode a query has its keys up to such a multiple: a run of slots may be read to the end of its
page."""


PREFIX_QUANTUM: Final = 64
"""Of what prefixes are multiples where calls are split: smaller ones part a tree more often, larger ones leave more
keys behind the prefix, of which each path of a tree has a copy."""


WHOLE_KEYS: Final = 512
"""Up to here calls are whole: a copy of so few keys for each of four paths takes no longer than a second call and
merging, which chains need not have at all."""


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """The keys and queries of one row of a pass.

    A token of a tree sees the kept prefix, its ancestors and itself (tree attention, SpecInfer, arXiv 2305.09781).
    `key_slots` and `key_indices` [keys] are pool slots and absolute indices in the sequence, `query_indices`
    [queries] those of the row's tokens. `visible` [queries, keys] says which keys a query sees; None for a single
    query that sees all.
    """

    key_slots: Integers
    key_indices: Integers
    query_indices: Integers
    visible: Booleans | None

    def within(self, window: int | None) -> "AttentionMask":
        """The same with keys further back than `window` tokens hidden; keys nobody sees are left out."""
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
    """The mask of a row that is in its tree already.

    Its keys are the prefix, then the row's ancestors among the nodes, then the row itself. Other branches of the
    tree are left out: nobody in the row sees them.
    """
    own = [tree.nodes[name] for name in row.nodes]
    if row.is_chain:
        return _mask(tree, [*tree.path(row.parents[0]), *own], len(own))
    ancestors, below = _branching(tree, row)
    return _mask(tree, [*ancestors, *own], len(own), below)


def _mask(
    tree: SequenceTree, nodes: Sequence[FedNode], queries: int, below: Booleans | None = None
) -> AttentionMask:
    """The mask of the last of these nodes: they see the prefix, and of nodes what `below` says, else all before."""
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
    """A branching row's ancestors outside it, and which of them and of the row's own nodes each token sees."""
    rank = {name: i for i, name in enumerate(row.nodes)}
    outside = [parent for parent in row.parents if parent != PREFIX and parent not in rank]
    paths = {parent: tree.path(parent) for parent in dict.fromkeys(outside)}
    # Paths share their beginnings; a slot tells a node apart.
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


def masks_by_path(tree: SequenceTree, row: Row) -> list[tuple[Integers, AttentionMask]]:
    """A row that is in its tree, cut into paths: the numbers of the queries in the row, and the mask of each path.

    A path leads from the beginning of the sequence to a leaf of the row. Its keys are its own tokens in their
    order, its queries those of the row that no path before has had. It is cut again where keys reach another
    `KEY_QUANTUM`.
    """
    number = {name: i for i, name in enumerate(row.nodes)}
    inner = set(row.parents)
    found: list[tuple[Integers, AttentionMask]] = []
    for leaf in row.nodes:
        if leaf in inner:
            continue
        queries: list[int] = []
        name = leaf
        while name in number:
            queries.append(number.pop(name))
            name = tree.nodes[name].parent
        queries.reverse()
        path = tree.path(leaf)
        first = len(path) - len(queries)
        while first < len(path):
            keys = len(tree.slots) + first
            last = min(len(path), first + KEY_QUANTUM - keys % KEY_QUANTUM)
            numbers = np.array(queries[first - len(path) :][: last - first], dtype=np.int64)
            found.append((numbers, _mask(tree, path[:last], last - first)))
            first = last
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The numbers of sequences, of queries of each and of keys of each in a rectangle for one call of a kernel."""

    sequences: int
    queries: int
    keys: int

    @classmethod
    def around(cls, masks: Sequence[AttentionMask]) -> "BatchShape":
        """The smallest that holds these rows."""
        keys = max(len(mask.key_slots) for mask in masks)
        return cls(
            sequences=len(masks),
            queries=max(len(mask.query_indices) for mask in masks),
            keys=-(-keys // ALIGNED_KEYS) * ALIGNED_KEYS,
        )

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


def bucket_of(shape: BatchShape) -> BatchShape | None:
    """The shape bucket that holds a shape, or None for a pass that is not worth a CUDA graph.

    A graph is of one shape only, so that a pass of few tokens is padded to the next larger one of a short list.
    Sequences and queries are rounded up to powers of two. Keys may also be three quarters of one, for they are
    most of the memory that a pass reads.
    """
    if shape.queries > MAX_PADDED_QUERIES:
        return None
    # Shorter contexts share a bucket.
    keys = max(shape.keys, 128)
    power = _power_of_two(keys)
    bucket = BatchShape(
        sequences=_power_of_two(shape.sequences),
        queries=_power_of_two(shape.queries),
        keys=power * 3 // 4 if keys <= power * 3 // 4 else power,
    )
    # Passes of more tokens are bound by arithmetic; launching them costs little beside it.
    return bucket if bucket.tokens <= 64 else None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`slots` [sequences, keys] of the pool, and True in `hidden` [sequences, queries, keys] where not to look.

    `token_indices` [tokens] says where in [sequences * queries] the tokens of the rows are, in their order.
    """

    slots: Integers
    hidden: Booleans
    token_indices: Integers


def pad(masks: Sequence[AttentionMask], shape: BatchShape) -> PaddedRows:
    """Rows in a rectangle that is large enough.

    Padding looks at the first key of its sequence only, or of the first sequence: the softmax of a query that sees
    nothing is NaN.
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
    """Where in [sequences * queries] of a shape the tokens of these rows are."""
    rows = [np.arange(len(mask.query_indices)) + number * shape.queries for number, mask in enumerate(masks)]
    return np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class Indices:
    """Slots, or tokens of a pass: a run where they are one, which is read without a copy, else an index tensor."""

    start: int
    count: int
    index: Tensor | None = None

    @classmethod
    def of(cls, numbers: Integers, device: torch.device) -> "Indices":
        first, count = int(numbers[0]), len(numbers)
        is_run = np.array_equal(numbers, np.arange(first, first + count))
        return cls(first, count, None if is_run else torch.from_numpy(numbers).to(device))

    def part(self, first: int, count: int) -> "Indices":
        """So many of them, from the one of that number on."""
        if self.index is None:
            return Indices(self.start + first, count)
        return Indices(self.start, count, self.index.narrow(0, first, count))


class AttentionCall:
    """The inputs of one call of the attention kernel: `sequences` of equally many queries and keys.

    `queries` are tokens of the pass, `slots` those of the keys, sequence after sequence. `hidden` is True where a
    query must not see a key, [sequences, queries, keys]; None for a single query that sees all.
    """

    __slots__ = ("_biases", "_hidden", "is_contiguous_decode", "is_decode", "queries", "sequences", "slots")

    def __init__(self, queries: Indices, slots: Indices, *, sequences: int, hidden: Tensor | None) -> None:
        self.queries = queries
        self.slots = slots
        self.sequences = sequences
        self.is_decode = hidden is None
        """True for a single query that sees all its keys, as in plain decoding."""
        self.is_contiguous_decode = hidden is None and slots.index is None
        self._hidden = hidden
        self._biases: dict[tuple[torch.dtype, int], Tensor] = {}

    def bias(self, dtype: torch.dtype, group: int, *, tiles: RowTiles | None = None) -> Tensor | None:
        """The mask as numbers to add to scores, [sequences, 1, group * queries, keys]; None for a decode.

        Made once for all layers: `group` is how many query heads share a key head. Rows that pad it for `tiles` see
        all keys, for the softmax of what sees nothing is NaN.
        """
        if self._hidden is None:
            return None
        found = self._biases.get((dtype, group))
        if found is None:
            bias = torch.zeros(self._hidden.shape, dtype=dtype, device=self._hidden.device)
            bias.masked_fill_(self._hidden, float("-inf"))
            found = bias.repeat(1, group, 1)[:, None]
            if tiles is not None:
                found = tiles.pad(found)
            self._biases[dtype, group] = found
        return found

    def pieces(self, most_queries: int) -> "list[tuple[slice, AttentionCall]]":
        """The call in pieces of at most so many queries, each with its place among the sequences."""
        if self._hidden is None or self._hidden.shape[0] * self._hidden.shape[1] <= most_queries:
            return [(slice(0, self.sequences), self)]
        queries, keys = self._hidden.shape[1:]
        # Outputs follow each other: whole sequences in one piece, or some queries of one.
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
                    hidden=self._hidden[place, start : start + length],
                )
                found.append((place, piece))
        return found


@dataclass(frozen=True, slots=True)
class SplitCall:
    """The attention of tokens that share a prefix, in two parts that are merged: the prefix, and what follows it.

    All queries of the call `prefix` see all its keys; without it there is no such part. In `tails` the keys of each
    path follow, a path being a sequence of its call. `order` says where each query is among those of all tails
    together; None where that is their order.
    """

    prefix: AttentionCall | None
    tails: tuple[AttentionCall, ...]
    order: Tensor | None


class DecoderPlan(Protocol):
    """The part of a pass that a decoder and its attention need to know."""

    @property
    def input_ids(self) -> Tensor:
        """The tokens [1, tokens]."""
        ...

    @property
    def position_ids(self) -> Tensor:
        """Their positions [1, tokens]."""
        ...

    @property
    def store(self) -> KvStore: ...

    @property
    def written(self) -> Indices:
        """The slots of the pass's tokens in their order."""
        ...

    @property
    def window_written(self) -> Indices:
        """The same in layers with a sliding window."""
        ...

    @property
    def order(self) -> Tensor | None:
        """Where each token is in the queries of all calls together; None where that is the pass's own order."""
        ...

    @property
    def attention_tiles(self) -> RowTiles | None:
        """What rows of attention are padded and cut to in deterministic mode; None otherwise."""
        ...

    def check(self) -> None:
        """Raise `PassAbandoned` where nobody wants the result any more; every layer asks."""
        ...

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        """The calls under a sliding window of that many tokens, or under none."""
        ...

    def splits(self) -> Sequence[SplitCall] | None:
        """What stands for the calls under no window where a kernel can merge two parts; None where it need not."""
        ...


class RowsPlan(ABC):
    """The tokens of a pass over rows that are in their trees already, and its calls, made once for each window.

    `written` are the slots of `tokens`, of which a plan may have more, as padding. With an order, implements
    `DecoderPlan`.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[int],
        positions: Integers,
        slots: Integers,
        store: KvStore,
        device: torch.device,
        is_abandoned: Callable[[], bool],
    ) -> None:
        self.tokens = tokens
        self.positions = positions
        self.slots = slots
        self.store = store
        self.device = device
        self._is_abandoned = is_abandoned
        self._calls: dict[int | None, list[AttentionCall]] = {}

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

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        found = self._calls.get(window)
        if found is None:
            found = self._calls[window] = self._make_calls(window)
        return found

    def splits(self) -> Sequence[SplitCall] | None:
        return None

    @abstractmethod
    def _make_calls(self, window: int | None) -> list[AttentionCall]: ...


class PassPlan(RowsPlan):
    """Implements `DecoderPlan` for rows that are in their trees already.

    With `pads_rows` short rows become one rectangle, which a GPU takes in one kernel; without, each row reads its
    keys where they are, which on a CPU is faster.
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
        self.masks = [mask_of(tree, row) for tree, row in feeds]
        super().__init__(
            tokens=[token for _, row in feeds for token in row.tokens],
            positions=np.concatenate([mask.query_indices for mask in self.masks]),
            slots=np.array([tree.nodes[name].slot for tree, row in feeds for name in row.nodes], dtype=np.int64),
            store=store,
            device=device,
            is_abandoned=is_abandoned,
        )
        self.attention_tiles: RowTiles | None = None
        # Rows by their number in the pass: row i has the tokens from _starts[i] to _starts[i + 1].
        self._starts = np.cumsum([0, *(len(mask.query_indices) for mask in self.masks)])
        short = [i for i, mask in enumerate(self.masks) if len(mask.query_indices) <= MAX_PADDED_QUERIES]
        self._padded = short if pads_rows and len(short) > 1 else []
        self._separate = [i for i in range(len(self.masks)) if i not in self._padded]

    @cached_property
    def order(self) -> Tensor | None:
        if not self._padded:
            return None
        padded = [self.masks[i] for i in self._padded]
        shape = BatchShape.around(padded)
        separate = sum(len(self.masks[i].query_indices) for i in self._separate)
        # The outputs of the rectangle come first, its padding included, then those of the separate rows.
        outputs = np.concatenate([padded_indices(padded, shape), shape.tokens + np.arange(separate)])
        tokens = np.concatenate([self._tokens_of(i) for i in (*self._padded, *self._separate)])
        order = np.empty_like(outputs)
        order[tokens] = outputs
        is_own_order = np.array_equal(order, np.arange(shape.tokens + separate))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def _make_calls(self, window: int | None) -> list[AttentionCall]:
        masks = [mask.within(window) for mask in self.masks]
        if window is not None:
            masks = [replace(mask, key_slots=self.store.window_slots(mask.key_slots)) for mask in masks]
        calls = [self._padded_call([masks[i] for i in self._padded])] if self._padded else []
        return calls + [self._separate_call(i, masks[i]) for i in self._separate]

    def _padded_call(self, masks: Sequence[AttentionMask]) -> AttentionCall:
        shape = BatchShape.around(masks)
        padded = pad(masks, shape)
        # The queries of the padding are those of the first token; nobody reads their output.
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
            # The run is read in slot order, which need not be the order of the columns.
            visible = visible[:, np.argsort(slots)]
        return AttentionCall(
            Indices(int(self._starts[number]), len(mask.query_indices)),
            Indices(lowest, len(slots), index),
            sequences=1,
            hidden=None if visible is None else torch.from_numpy(~visible)[None].to(self.device),
        )

    def _tokens_of(self, number: int) -> Integers:
        return np.arange(self._starts[number], self._starts[number + 1], dtype=np.int64)


class PathPlan(RowsPlan):
    """Implements `DecoderPlan` for deterministic mode: a token's result depends on its own path only, bit for bit.

    Every query finds its keys in the order of their positions, as if its path were alone, followed by hidden ones
    up to the next multiple of `KEY_QUANTUM` and no further: not only the order of its sums but the shape of the
    kernel that runs them is then the same whatever else is in the pass, but for the number of rows.
    Tokens are padded to the row tiles of products by repeating the last one, whose keys are not written then and
    whose attention is the first token's.

    Where calls are split, the paths of a tree share one call over the keys before it, and another over what
    follows, of which each path has a copy. `prefix_keys` says where.
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
        # The paths of all rows, each with the numbers of its queries in the pass: by row and prefix, then by the
        # number of their keys.
        self._groups: dict[tuple[int, bytes], dict[int, list[tuple[Integers, AttentionMask]]]] = {}
        start = 0
        for tree, row in feeds:
            for queries, mask in masks_by_path(tree, row):
                keys = _padded_keys(mask)
                by_keys = self._groups.setdefault((start, mask.key_slots[: prefix_keys(keys)].tobytes()), {})
                by_keys.setdefault(keys, []).append((start + queries, mask))
            start += len(row.tokens)
        self._paths = [path for group in self._groups.values() for paths in group.values() for path in paths]
        self._splits: list[SplitCall] | None = None

    @cached_property
    def order(self) -> Tensor | None:
        queries = np.concatenate([numbers for numbers, _ in self._paths])
        order = np.zeros(len(queries) + self._padding, dtype=np.int64)
        order[queries] = np.arange(len(queries))
        is_own_order = np.array_equal(order, np.arange(len(queries)))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def splits(self) -> Sequence[SplitCall]:
        if self._splits is None:
            self._splits = [self._split(group) for group in self._groups.values()]
        return self._splits

    def _split(self, group: dict[int, list[tuple[Integers, AttentionMask]]]) -> SplitCall:
        paths = [path for paths in group.values() for path in paths]
        _, mask = paths[0]
        prefix = prefix_keys(_padded_keys(mask))
        tails = [self._tail(paths, prefix, keys) for keys, paths in group.items()]
        queries = np.concatenate([numbers for numbers, _ in paths])
        # Where a query comes again as padding, its first place counts.
        padded = np.concatenate([numbers for numbers, _ in tails])
        tokens, first = np.unique(padded, return_index=True)
        order = first[np.searchsorted(tokens, queries)].astype(np.int64)
        is_own_order = np.array_equal(order, np.arange(len(padded)))
        shared = None
        if prefix:
            shared = AttentionCall(
                Indices.of(queries, self.device),
                Indices.of(mask.key_slots[:prefix], self.device),
                sequences=1,
                hidden=None,
            )
        return SplitCall(
            prefix=shared,
            tails=tuple(call for _, call in tails),
            order=None if is_own_order else torch.from_numpy(order).to(self.device),
        )

    def _tail(
        self, paths: Sequence[tuple[Integers, AttentionMask]], prefix: int, keys: int
    ) -> tuple[Integers, AttentionCall]:
        """The call over what follows a prefix in equally long paths, and its queries, padded to equally many."""
        count = max(len(queries) for queries, _ in paths)
        tokens = np.empty((len(paths), count), dtype=np.int64)
        slots = np.empty((len(paths), keys - prefix), dtype=np.int64)
        hidden = np.ones((len(paths), count, keys - prefix), dtype=np.bool_)
        # What pads the queries is their first one and sees one key: the softmax of what sees none is NaN.
        hidden[:, :, 0] = False
        for i, (queries, mask) in enumerate(paths):
            own = len(mask.key_slots) - prefix
            tokens[i, : len(queries)], tokens[i, len(queries) :] = queries, queries[0]
            slots[i, :own], slots[i, own:] = mask.key_slots[prefix:], mask.key_slots[prefix]
            hidden[i, : len(queries), :own] = False if mask.visible is None else ~mask.visible[:, prefix:]
        run = self._page_run(paths[0][1].key_slots[prefix:], keys - prefix) if len(paths) == 1 else None
        call = AttentionCall(
            Indices.of(tokens.ravel(), self.device),
            Indices(0, slots.size, torch.from_numpy(slots.ravel()).to(self.device)) if run is None else run,
            sequences=len(paths),
            hidden=torch.from_numpy(hidden).to(self.device),
        )
        return tokens.ravel(), call

    def _page_run(self, slots: Integers, count: int, limit: int | None = None) -> Indices | None:
        """These slots with the rest of their last page, `count` together; None where they are no run of pages."""
        first = int(slots[0])
        limit = self.store.slots if limit is None else limit
        is_run = np.array_equal(slots, np.arange(first, first + len(slots)))
        fits = first % PAGE_TOKENS == 0 and first + count <= limit
        return Indices(first, count) if is_run and fits else None

    def _make_calls(self, window: int | None) -> list[AttentionCall]:
        return [self._call(queries, mask, window) for queries, mask in self._paths]

    def _call(self, queries: Integers, mask: AttentionMask, window: int | None) -> AttentionCall:
        key_slots = mask.key_slots if window is None else self.store.window_slots(mask.key_slots)
        keys = len(key_slots)
        padding = _padded_keys(mask) - keys
        hidden = np.ones((len(queries), keys + padding), dtype=np.bool_)
        hidden[:, :keys] = False if mask.visible is None else ~mask.visible
        if window is not None:
            # Keys outside the window are hidden, not left out: the others must stay where they are.
            hidden[:, :keys] |= mask.key_indices[None, :] <= mask.query_indices[:, None] - window
        # A page that was left behind is read as the spare one, which hides as well.
        windows = None if window is None else self.store.windows
        slots = self._page_run(key_slots, keys + padding, None if windows is None else windows.slots)
        if slots is None:
            first = int(key_slots[0])
            padded = np.concatenate([key_slots, np.full(padding, first)])
            slots = Indices(first, keys + padding, torch.from_numpy(padded).to(self.device))
        return AttentionCall(
            Indices.of(queries, self.device),
            slots,
            sequences=1,
            hidden=torch.from_numpy(hidden)[None].to(self.device),
        )


def _padded_keys(mask: AttentionMask) -> int:
    return -(-len(mask.key_slots) // KEY_QUANTUM) * KEY_QUANTUM


def prefix_keys(keys: int) -> int:
    """How many of so many keys, a multiple of `KEY_QUANTUM`, are prefix where a call is split.

    Of each token the same, whatever is fed with it. A tree no deeper than `KEY_QUANTUM` lies behind the prefixes of
    all its tokens.
    """
    return 0 if keys <= WHOLE_KEYS else (keys - 2 * KEY_QUANTUM) // PREFIX_QUANTUM * PREFIX_QUANTUM


def stale_slots(feeds: Feeds) -> Integers:
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
