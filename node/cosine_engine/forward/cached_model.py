"""A transformers model that runs passes row by row, with its own attention and a cache gathered from the pool."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from cosine_engine.base import Row
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.pass_features import PassFeatures
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.forward.pass_plan import separate_feed
from cosine_engine.forward.support import UnsupportedModel, cache_parameter
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.pool_size import TokenBytes
from cosine_engine.tree import Feeds, SequenceTree
from cosine_p2p.storage.memory import Remembered

TOKENS_A_STATE: Final = 256
"""Number of pool tokens per stored recurrent state. Each request needs its own state."""
LEAST_STATES: Final = 16
"""Minimum number of stored states: a node's default number of concurrent requests."""
STATE_FIELDS: Final = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""State attributes of transformers' linear attention layers; each maps state numbers to values."""

LayerState = dict[str, dict[int, Any]]
"""The state attributes of one layer."""
ModelState = dict[int, LayerState]
"""The state of each layer that has one, by layer index; tensors have one row."""


@dataclass(frozen=True, slots=True)
class PathToken:
    """A token of a path and its slot. `number` is its place in the row, or None if an earlier pass fed it."""

    token: int
    slot: int
    number: int | None


@dataclass(frozen=True, slots=True)
class PathBatch:
    """Paths that follow the same past tokens, in the slots `past`, as a batch for models without tree attention.

    A token that several paths share is computed in each of them and written to the pool once.
    """

    past: tuple[int, ...]
    paths: tuple[tuple[PathToken, ...], ...]

    def padded(self) -> list[list[int]]:
        """Return the token ids of all paths, padded at the end to equal lengths."""
        length = max(len(path) for path in self.paths)
        return [[step.token for step in path] + [0] * (length - len(path)) for path in self.paths]

    def places(self) -> dict[int, tuple[int, int]]:
        """Return the first path that contains each token of the row, and the token's place in it."""
        found: dict[int, tuple[int, int]] = {}
        for i, path in enumerate(self.paths):
            for j, step in enumerate(path):
                if step.number is not None:
                    found.setdefault(step.number, (i, j))
        return found

    def slots(self) -> list[int]:
        """Return the slots of the row's tokens in the order of `places`."""
        return [self.paths[i][j].slot for i, j in self.places().values()]


class RowPaths:
    """The paths of a row in its tree: their shared `stem` below the kept prefix, and the `branches` below it."""

    def __init__(self, tree: SequenceTree, row: Row) -> None:
        inner = set(row.parents)
        # A slot identifies a node.
        numbers = {tree.nodes[name].slot: number for number, name in enumerate(row.nodes)}
        paths = [
            tuple(PathToken(node.token, node.slot, numbers.get(node.slot)) for node in tree.path(leaf))
            for leaf in row.nodes
            if leaf not in inner
        ]
        shared = list(takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False)))
        self._tree = tree
        self.stem = tuple(steps[0] for steps in shared)
        self.branches = tuple(path[len(shared) :] for path in paths) if len(paths) > 1 else ()

    @property
    def known_slots(self) -> list[int]:
        """The slots of the prefix and of the stem's tokens that earlier passes fed."""
        return [*self._tree.slots, *(step.slot for step in self.stem if step.number is None)]

    @property
    def stem_end(self) -> int:
        """The number of tokens from the beginning of the sequence to the end of the stem."""
        return len(self._tree.tokens) + len(self.stem)

    def whole(self) -> PathBatch:
        """Return all paths in one batch, after the tokens that earlier passes fed."""
        fed = [step for step in self.stem if step.number is None]
        rest = self.stem[len(fed) :]
        paths = tuple(rest + branch for branch in self.branches) or (rest,)
        return PathBatch(tuple(self.known_slots), paths)

    def split(self, known: int, *, page_tokens: int, most_tokens: int) -> list[PathBatch]:
        """Return the stem after its first `known` tokens in pieces of one path, and the branches in one batch.

        Pieces have at most `most_tokens` tokens. If the stem is long, a piece ends with its last whole page, up to
        which other requests may share it.
        """
        tree, end = self._tree, self.stem_end
        again = range(known, len(tree.tokens))
        line = (*(PathToken(tree.tokens[i], tree.slots[i], None) for i in again), *self.stem)[known - end :]
        slots = (*tree.slots, *(step.slot for step in self.stem))
        cuts = {*range(known, end, most_tokens), end}
        if end - known > page_tokens:
            cuts.add(end // page_tokens * page_tokens)
        pieces = [
            PathBatch(slots[:start], (line[start - known : stop - known],))
            for start, stop in pairwise(sorted(cuts))
        ]
        return [*pieces, PathBatch(slots, self.branches)] if self.branches else pieces


KNOWN_LAYERS: Final = (
    *(DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer, DummyLayer),
    *(LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer),
)
"""Supported layers of transformers' caches: with keys and values, a recurrent state, both or neither."""


@dataclass(frozen=True, slots=True)
class Past:
    """The pool slots [tokens] of the common past of `paths` paths. `check` may raise `PassAbandoned`."""

    slots: Tensor
    paths: int
    store: KvStore
    check: Callable[[], None]


class GatheredLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keys and values of one layer: those of the past, the same for every path, then those that the model adds.

    No key is dropped: the model's mask implements a sliding window.
    """

    is_initialized: bool

    def __init__(self, index: int, past: Past) -> None:
        super().__init__()
        self._index = index
        self._past = past
        self._seen_tokens = len(past.slots)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values; return those of all tokens [paths, heads, tokens, width]."""
        del args, kwargs
        past = self._past
        past.check()
        if not self.is_initialized:
            self.keys, self.values = (
                stored.transpose(1, 2)[0].index_select(0, past.slots).transpose(0, 1).expand(past.paths, -1, -1, -1)
                for stored in past.store.layer(self._index, key_states, value_states)
            )
            self.is_initialized = True
        self.keys = torch.cat([self.keys, key_states], 2)
        self.values = torch.cat([self.values, value_states], 2)
        self._seen_tokens = self.keys.shape[2]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._seen_tokens

    def write(self, slots: Tensor, paths: Tensor, tokens: Tensor) -> None:
        """Write tokens to pool slots; `tokens` are their places in `paths` after the past."""
        if not self.is_initialized:
            return
        pages = self._past.store.layer(self._index, self.keys, self.values)
        for stored, added in zip(pages, (self.keys, self.values), strict=True):
            rows = added[paths, :, len(self._past.slots) + tokens]
            stored.index_copy_(2, slots, rows.transpose(0, 1)[None])


class GatheredHybridLayer(LinearAttentionLayer, GatheredLayer):  # type: ignore[misc]  # transformers has no types
    """A layer with keys, values and a recurrent state."""

    is_compileable = False

    def __init__(self, index: int, past: Past, number_of_states: int) -> None:
        GatheredLayer.__init__(self, index, past)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class GatheredCache(Cache):  # type: ignore[misc]  # transformers has no types
    """The cache of one forward of a batch of paths, with the pool's keys and values and the state of their past.

    Models read and extend it as any other. `write` stores what they add in the pool after the forward. `kinds` are
    the layers of transformers' own cache.
    """

    def __init__(self, kinds: Sequence[Any], past: Past, state: ModelState | None) -> None:
        layers: list[Any] = []
        for index, kind in enumerate(kinds):
            states = kind.number_of_states if isinstance(kind, LinearAttentionLayer) else 0
            if isinstance(kind, DynamicLayer):
                layers.append(GatheredHybridLayer(index, past, states) if states else GatheredLayer(index, past))
            else:
                layers.append(LinearAttentionLayer(number_of_states=states) if states else DummyLayer())
            # Models look for the first layer of each kind of mask.
            layers[-1].is_sliding = bool(getattr(kind, "is_sliding", False))
            if state is not None and index in state:
                _restore(layers[-1], state[index], rows=past.paths)
        super().__init__(layers=layers)
        self._past = past

    def write(self, batch: PathBatch) -> None:
        """Write the keys and values of the row's tokens to their slots."""
        places = list(batch.places().values())
        if not places:
            return
        device = self._past.slots.device
        slots = torch.tensor(batch.slots(), dtype=torch.int64, device=device)
        paths, tokens = torch.tensor(places, dtype=torch.int64, device=device).unbind(1)
        for layer in self.layers:
            if isinstance(layer, GatheredLayer):
                layer.write(slots, paths, tokens)

    def state(self) -> ModelState:
        """Return a copy of the current state."""
        return {
            index: {name: _each(getattr(layer, name), torch.clone) for name in STATE_FIELDS}
            for index, layer in enumerate(self.layers)
            if isinstance(layer, LinearAttentionLayer)
        }


def _restore(layer: LinearAttentionLayer, state: LayerState, *, rows: int) -> None:
    """Set a layer's state to `rows` copies of a state: models change it in place."""
    for name, values in state.items():
        setattr(layer, name, _each(values, lambda value: value.repeat(rows, *(1,) * (value.dim() - 1))))
    tensors = [value for values in state.values() for value in values.values() if isinstance(value, Tensor)]
    if tensors:
        layer.device, layer.dtype = tensors[0].device, tensors[0].dtype


def _each(values: dict[int, Any], change: Callable[[Tensor], Tensor]) -> dict[int, Any]:
    return {number: change(value) if isinstance(value, Tensor) else value for number, value in values.items()}


class CachedModel(PassModel):
    """Wraps a causal LM for passes over a pool of `slots` token slots, with one or a few forwards per row.

    The paths of a token tree are a batch that shares the keys and values of their past. If layers have a recurrent
    state, the stem that all paths share is fed first, from the last token whose state is stored: a state cannot be
    rolled back by a token, nor shared by branches (STree, arXiv 2505.14969).
    With `is_stepped`, at most one token at a time follows a state, for models that otherwise ignore it. Otherwise
    the model can keep what enters `feature_layers`. Raises `UnsupportedModel`.
    """

    attention_name = "eager"

    def __init__(
        self, model: Any, *, slots: int, is_stepped: bool = False, feature_layers: Sequence[int] = ()
    ) -> None:
        model.set_attn_implementation(self.attention_name)
        super().__init__(model, KvStore(slots=slots), PassFeatures(model, feature_layers, slots=slots))
        # By the slot of the last token of a state.
        self._states = Remembered[int, ModelState](max(LEAST_STATES, slots // TOKENS_A_STATE))
        self._is_stepped = is_stepped
        self._kinds = DynamicCache(config=model.config).layers
        for layer in self._kinds:
            if type(layer) not in KNOWN_LAYERS:
                raise UnsupportedModel(
                    model.config.model_type, f"its cache has layers of type {type(layer).__name__}"
                )
        self._has_state = any(isinstance(layer, LinearAttentionLayer) for layer in self._kinds)
        name = cache_parameter(type(model))
        if name is None:
            raise UnsupportedModel(model.config.model_type, "it does not accept a transformers cache")
        self._cache_parameter = name
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self.vocab_tokens, self._state_bytes = self._warm_up()

    def _warm_up(self) -> tuple[int, int]:
        """Run one token, which allocates the pool; return the vocabulary size and the bytes of a state."""
        with torch.inference_mode():
            batch = RowPaths(*separate_feed([0])).whole()
            logits, cache = self._forward(batch, None, keep=[0])
            cache.write(batch)
            tensors = [
                value
                for layer in cache.state().values()
                for values in layer.values()
                for value in values.values()
                if isinstance(value, Tensor)
            ]
            return logits.shape[-1], sum(tensor.nbytes for tensor in tensors)

    def forgets_state(self) -> bool:
        """True if a forward of several tokens ignores the recurrent state of some layer.

        Each state is replaced by NaN in turn: if it is read, NaN appears in the logits.
        """
        first, rest = PathToken(0, 0, 0), (PathToken(0, 1, 1), PathToken(0, 2, 2))
        with torch.inference_mode():
            state = self._forward(PathBatch((), ((first,),)), None, keep=[0])[1].state()
            for index, layer in state.items():
                values = layer["recurrent_states"]
                spoilt = {i: torch.full_like(value, torch.nan) for i, value in values.items() if value is not None}
                if not spoilt:
                    continue
                changed = {**state, index: {**layer, "recurrent_states": {**values, **spoilt}}}
                logits, _ = self._forward(PathBatch((0,), (rest,)), changed, keep=[1])
                if not logits.isnan().any():
                    return True
        return False

    @property
    def token_bytes(self) -> TokenBytes:
        token = super().token_bytes
        return replace(token, total=token.total + -(-self._state_bytes // TOKENS_A_STATE))

    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        found: dict[int, Tensor] = {}
        start = 0
        with self._passing():
            for tree, row in feeds:
                for name in row.nodes:
                    self._states.pop(tree.nodes[name].slot)
                stop = start + len(row.tokens)
                numbers = {position - start for position in wanted if start <= position < stop}
                for number, logits in self._row_logits(tree, row, numbers).items():
                    found[start + number] = logits
                start = stop
            if not wanted:
                return torch.empty(0, self.vocab_tokens, dtype=self.model.dtype, device=self.device)
            return torch.stack([found[position] for position in wanted])

    def _row_logits(self, tree: SequenceTree, row: Row, wanted: set[int]) -> dict[int, Tensor]:
        """Feed one row; return the logits [vocab] after its tokens with these numbers."""
        paths = RowPaths(tree, row)
        if not self._has_state:
            return self._batch_logits(paths.whole(), None, wanted)[0]
        found: dict[int, Tensor] = {}
        known, state = self._last_state(paths.known_slots)
        # Bounds memory when tokens are fed again to restore a state: a piece attends to its whole past at once.
        page_tokens, most_tokens = PAGE_TOKENS, 512
        if self._is_stepped:
            page_tokens = most_tokens = max(paths.stem_end, 1)
            # From here on, one forward over the whole stem is faster than one per token.
            if paths.stem_end - known > 16:
                known, state = 0, None
        for batch in paths.split(known, page_tokens=page_tokens, most_tokens=most_tokens):
            logits, cache = self._batch_logits(batch, state, wanted)
            found |= logits
            if len(batch.paths) == 1:
                state = cache.state()
                self._states.note(batch.paths[0][-1].slot, state)
        return found

    def _last_state(self, slots: Sequence[int]) -> tuple[int, ModelState | None]:
        """Return the number of leading tokens that the last stored state covers, and the state; else 0 and None."""
        for count in range(len(slots), 0, -1):
            state = self._states.get(slots[count - 1])
            if state is not None:
                # Mark it as most recently used.
                self._states.note(slots[count - 1], state)
                return count, state
        return 0, None

    def _batch_logits(
        self, batch: PathBatch, state: ModelState | None, wanted: set[int]
    ) -> tuple[dict[int, Tensor], GatheredCache]:
        """Feed a batch and write its keys and values; return the logits after the wanted tokens of the row."""
        places = {number: place for number, place in batch.places().items() if number in wanted}
        # The output projection is a large share of a small model, so it is computed only where it is wanted.
        keep = sorted({token for _, token in places.values()}) or [len(batch.paths[0]) - 1]
        logits, cache = self._forward(batch, state, keep=keep)
        cache.write(batch)
        length = max(len(path) for path in batch.paths)
        of_row = [path * length + token for path, token in batch.places().values()]
        self.features.keep(np.array(batch.slots(), np.int64), of_row)
        column = {token: i for i, token in enumerate(keep)}
        return {number: logits[path, column[token]] for number, (path, token) in places.items()}, cache

    def _forward(
        self, batch: PathBatch, state: ModelState | None, *, keep: list[int]
    ) -> tuple[Tensor, GatheredCache]:
        """Return the logits [paths, keep, vocab] of a batch at some tokens, and the cache after it."""
        slots = torch.tensor(batch.past, dtype=torch.int64, device=self.device)
        cache = GatheredCache(self._kinds, Past(slots, len(batch.paths), self.store, self._check), state)
        ids = torch.tensor(batch.padded(), dtype=torch.int64, device=self.device)
        kept = torch.tensor(keep, dtype=torch.int64, device=self.device)
        step_tokens = 1 if self._is_stepped and state is not None else ids.shape[1]
        is_whole = step_tokens == ids.shape[1]
        first, logits = len(batch.past), list[Tensor]()
        for part in torch.split(ids, step_tokens, 1):
            self._check()
            arguments: dict[str, Any] = {self._cache_parameter: cache, "use_cache": True}
            if self._takes_positions:
                # As `generate` does: some models do not count positions themselves.
                positions = torch.arange(first, first + part.shape[1], device=self.device)
                arguments["position_ids"] = positions.expand_as(part)
                first += part.shape[1]
            if is_whole and self._keeps_logits:
                arguments["logits_to_keep"] = kept
            logits.append(self.model(input_ids=part, **arguments).logits)
        joined = torch.cat(logits, 1)
        return joined if is_whole and self._keeps_logits else joined[:, kept], cache
