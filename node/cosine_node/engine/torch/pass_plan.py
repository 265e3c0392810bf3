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
from cosine_node.engine.torch.row_tiles import KEY_BLOCK, RowTiles, RowTileSet
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
KERNEL_KEYS: Final = 512
"""So many keys PyTorch's kernel on CPUs takes at once, and merges: a key must stay among those it is alone with."""
CALL_QUERIES: Final = 64
"""The most tokens of one path in a call: a longer path has calls that leave out the keys after their tokens."""
FEW_QUERIES: Final = 16
"""Of more, the heads are more rows than come out alike unless keys are whole blocks. The end of the last one may be
another's page: keys are then copied."""


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


@dataclass(frozen=True, slots=True)
class PathPart:
    """Tokens of a row that follow each other: the numbers of these queries in their pass, and their mask.

    Its keys are all tokens from the beginning of the sequence to the last of the queries, in their order.
    """

    queries: Integers
    mask: AttentionMask

    @property
    def keys(self) -> int:
        return len(self.mask.key_slots)


def quantum_end(keys: int) -> int:
    """Where a part ends that begins with a query of so many keys: no key more would fit into its quantum."""
    return -(-keys // KEY_QUANTUM) * KEY_QUANTUM


def path_parts(
    tree: SequenceTree, row: Row, *, first_query: int = 0, end_of: Callable[[int], int] = quantum_end
) -> list[PathPart]:
    """A row that is in its tree, cut into parts of paths, in whose order its queries come.

    A path leads from the beginning of the sequence to a leaf of the row. Its queries are the tokens of the row that
    no path before has had. It is cut where `end_of` says: the most keys of a part whose first query has so many.
    """
    number = {name: first_query + i for i, name in enumerate(row.nodes)}
    inner = set(row.parents)
    found = []
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
        before = len(path) - len(queries)
        first = before
        while first < len(path):
            last = min(len(path), end_of(len(tree.slots) + first + 1) - len(tree.slots))
            numbers = np.array(queries[first - before : last - before], dtype=np.int64)
            found.append(PathPart(numbers, _mask(tree, path[:last], last - first)))
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

    __slots__ = ("_biases", "_hidden", "is_one", "is_run_of_one", "queries", "sequences", "slots")

    def __init__(self, queries: Indices, slots: Indices, *, sequences: int, hidden: Tensor | None) -> None:
        self.queries = queries
        self.slots = slots
        self.sequences = sequences
        self.is_one = sequences == 1 and queries.count == 1 and queries.index is None
        """True for a single query, as in plain decoding."""
        self.is_run_of_one = self.is_one and slots.index is None
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
class DenseCalls:
    """Calls, and where each token of the pass is in all their queries; None where that is the pass's own order."""

    calls: tuple[AttentionCall, ...]
    order: Tensor | None


class DecoderPlan(Protocol):
    """The part of a pass that a decoder and its attention need to know."""

    @property
    def input_ids(self) -> Tensor:
        """The tokens [1, tokens]."""

    @property
    def position_ids(self) -> Tensor:
        """Their positions [1, tokens]."""

    @property
    def store(self) -> KvStore: ...

    @property
    def written(self) -> Indices:
        """The slots of the pass's tokens in their order."""

    @property
    def window_written(self) -> Indices:
        """The same in layers with a sliding window."""

    @property
    def order(self) -> Tensor | None:
        """Where each token is in the queries of all calls together; None where that is the pass's own order."""

    def attention_tiles(self, keys: int) -> RowTiles | None:
        """What the rows of a call with so many keys are padded and cut to in deterministic mode; None otherwise."""

    def check(self) -> None:
        """Raise `PassAbandoned` where nobody wants the result any more; every layer asks."""

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        """The calls under a sliding window of that many tokens, or under none."""

    def dense_calls(self) -> DenseCalls | None:
        """What stands for the calls under no window where PyTorch's own kernel runs them; None where they do."""


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

    def dense_calls(self) -> DenseCalls | None:
        return None

    def attention_tiles(self, keys: int) -> RowTiles | None:
        del keys
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

    Up to as many keys as `tiles` say hidden ones change nothing, if in whole blocks: there the paths of a tree are
    keys beside each other in one call.
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
        self._tiles = tiles
        self._feeds = feeds
        self._parts = self._cut(self._dense_end)
        self._dense_calls: DenseCalls | None = None

    def _cut(self, end_of: Callable[[int], int]) -> list[list[PathPart]]:
        """The parts of the paths of each row."""
        found, start = [], 0
        for tree, row in self._feeds:
            found.append(path_parts(tree, row, first_query=start, end_of=end_of))
            start += len(row.tokens)
        return found

    def _dense_end(self, keys: int) -> int:
        """As `quantum_end`, where hidden keys change nothing."""
        most = self._tiles.hidden_keys
        return min(keys + CALL_QUERIES - 1, most) if keys <= most else quantum_end(keys)

    def attention_tiles(self, keys: int) -> RowTiles:
        return self._tiles.attention_of(keys)

    @cached_property
    def order(self) -> Tensor | None:
        return self._order_of([part.queries for parts in self._parts for part in parts])

    def _order_of(self, queries: Sequence[Integers]) -> Tensor | None:
        joined = np.concatenate(queries)
        order = np.zeros(len(joined) + self._padding, dtype=np.int64)
        order[joined] = np.arange(len(joined))
        is_own_order = np.array_equal(order, np.arange(len(joined)))
        return None if is_own_order else torch.from_numpy(order).to(self.device)

    def dense_calls(self) -> DenseCalls | None:
        if self._dense_calls is None and self._tiles.hidden_keys:
            joined: list[tuple[Integers, AttentionCall]] = []
            for parts, (_, row) in zip(self._parts, self._feeds, strict=True):
                if row.is_chain:
                    joined += [(part.queries, self._call(part, None)) for part in parts]
                else:
                    joined += self._calls_of_tree(parts)
            order = self._order_of([queries for queries, _ in joined])
            self._dense_calls = DenseCalls(tuple(call for _, call in joined), order)
        return self._dense_calls

    def _calls_of_tree(self, parts: Sequence[PathPart]) -> list[tuple[Integers, AttentionCall]]:
        """The calls of parts of paths of a tree with their queries, as many in each as can stand beside others."""
        shared = _shared_keys([part.mask.key_slots for part in parts]) // KEY_BLOCK
        joined: list[list[PathPart]] = []
        end = 0
        for part in parts:
            blocks = -(-part.keys // KEY_BLOCK) - shared
            moved = end - shared
            # Wherever they stand, the kernel takes its keys together that it takes together alone.
            stays = all(
                (block + moved) * KEY_BLOCK // KERNEL_KEYS == block * KEY_BLOCK // KERNEL_KEYS
                for block in range(shared, shared + blocks)
            )
            if joined and stays and (end + blocks) * KEY_BLOCK <= self._tiles.hidden_keys:
                joined[-1].append(part)
            else:
                joined.append([part])
                end = shared
            end += blocks
        return [
            (beside[0].queries, self._call(beside[0], None))
            if len(beside) == 1
            else self._joint_call(beside, shared * KEY_BLOCK)
            for beside in joined
        ]

    def _joint_call(self, parts: Sequence[PathPart], shared: int) -> tuple[Integers, AttentionCall]:
        """The call of parts that share so many keys: what follows stands beside each other, in whole blocks."""
        queries = np.concatenate([part.queries for part in parts])
        widths = [-(-(part.keys - shared) // KEY_BLOCK) * KEY_BLOCK for part in parts]
        slots = np.full(shared + sum(widths), parts[0].mask.key_slots[0], dtype=np.int64)
        slots[:shared] = parts[0].mask.key_slots[:shared]
        hidden = np.ones((len(queries), len(slots)), dtype=np.bool_)
        first, row = shared, 0
        for part, width in zip(parts, widths, strict=True):
            columns = slice(first, first + part.keys - shared)
            rows = slice(row, row + len(part.queries))
            slots[columns] = part.mask.key_slots[shared:]
            hidden[rows, :shared] = False if part.mask.visible is None else ~part.mask.visible[:, :shared]
            hidden[rows, columns] = False if part.mask.visible is None else ~part.mask.visible[:, shared:]
            first, row = first + width, rows.stop
        # In the order of the pass, in which they are a run where one call has the whole tree.
        order = np.argsort(queries)
        queries, hidden = queries[order], hidden[order]
        return queries, AttentionCall(
            Indices.of(queries, self.device),
            Indices(0, len(slots), torch.from_numpy(slots).to(self.device)),
            sequences=1,
            hidden=torch.from_numpy(hidden)[None].to(self.device),
        )

    def _page_run(self, slots: Integers, count: int, limit: int | None = None) -> Indices | None:
        """These slots with the rest of their last page, `count` together; None where they are no run of pages."""
        first = int(slots[0])
        limit = self.store.slots if limit is None else limit
        is_run = np.array_equal(slots, np.arange(first, first + len(slots)))
        fits = first % PAGE_TOKENS == 0 and first + count <= limit and count == quantum_end(len(slots))
        return Indices(first, count) if is_run and fits else None

    def _make_calls(self, window: int | None) -> list[AttentionCall]:
        parts = self._cut(quantum_end) if self._tiles.hidden_keys else self._parts
        return [self._call(part, window) for of_row in parts for part in of_row]

    def _call(self, part: PathPart, window: int | None) -> AttentionCall:
        mask, keys = part.mask, part.keys
        key_slots = mask.key_slots if window is None else self.store.window_slots(mask.key_slots)
        padding = quantum_end(keys) - keys
        if len(part.queries) > FEW_QUERIES and window is None and keys <= self._tiles.hidden_keys:
            padding = -keys % KEY_BLOCK
        hidden = np.ones((len(part.queries), keys + padding), dtype=np.bool_)
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
            Indices.of(part.queries, self.device),
            slots,
            sequences=1,
            hidden=torch.from_numpy(hidden)[None].to(self.device),
        )


def _shared_keys(slots: Sequence[Integers]) -> int:
    """The number of leading slots that all have."""
    first = slots[0][: min(map(len, slots))]
    is_other = np.logical_or.reduce([each[: len(first)] != first for each in slots])
    return int(is_other.argmax()) if is_other.any() else len(first)


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
