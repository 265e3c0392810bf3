"""A transformers model that runs passes with its own attention and a cache gathered from the pool, row by row."""

import inspect
import threading
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import OutOfMemory, PassAbandoned, Row
from cosine_node.engine.gathered_cache import GatheredCache, ModelState, Past, layer_kinds, state_bytes
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.pass_model import Feeds
from cosine_node.engine.path_batch import PathBatch, PathToken, RowPaths
from cosine_node.engine.state_store import StateStore
from cosine_node.engine.support import UnsupportedModel, cache_parameter
from cosine_node.engine.tree import SequenceTree
from cosine_node.pool_size import TokenBytes
from cosine_protocol.request import Sampling

TOKENS_A_STATE: Final = 256
"""A choice: the pool keeps a recurrent state for each so many tokens. Each request needs one of its own."""
LEAST_STATES: Final = 16
"""A choice: a node serves so many requests at once unless told otherwise."""
MOST_PIECE_TOKENS: Final = 512
"""Bounds memory where tokens are fed again to regain a state: a piece attends to all before it at once."""
MOST_STEPS: Final = 16
"""A choice: more tokens than this are fed with all before them in one forward rather than one by one."""


class CachedModel:
    """Wraps a causal LM for passes over a pool of `slots` token slots: one forward a row, or a few.

    The paths of a token tree are a batch, which shares the keys and values of what was fed before. Where layers
    have a recurrent state, the stem that all paths share is fed first, from the last token whose state is known.
    With `is_stepped` no more than one token at a time follows a state, for models that would else forget it.
    Raises `UnsupportedModel`.
    """

    attention_name: Final = "eager"

    def __init__(self, model: Any, *, slots: int, is_stepped: bool = False) -> None:
        model.set_attn_implementation(self.attention_name)
        self.model = model.eval()
        self.device: torch.device = model.device
        self.store = KvStore(slots=slots)
        self.states = StateStore[ModelState](capacity=max(LEAST_STATES, slots // TOKENS_A_STATE))
        self._is_stepped = is_stepped
        self._abandoned = threading.Event()
        self._kinds = layer_kinds(model.config)
        self._has_state = any(kind.states for kind in self._kinds)
        name = cache_parameter(type(model))
        if name is None:
            raise UnsupportedModel(model.config.model_type, "it takes no cache of transformers")
        self._cache_parameter = name
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self.vocab_tokens, self._state_bytes = self._warm_up()

    def _warm_up(self) -> tuple[int, int]:
        """Run one token, which allocates the pool; the width of the vocabulary, and the bytes of a state."""
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
        row = Row.chain(0, [0])
        tree.add(row, [0])
        with torch.inference_mode():
            batch = RowPaths(tree, row).whole()
            logits, cache = self._forward(batch, None, keep=[0])
            cache.write(batch)
            return logits.shape[-1], state_bytes(cache.state())

    def forgets_state(self) -> bool:
        """True if several tokens at once do not continue the recurrent state of each layer.

        NaN in a state that is read shows in the logits, in any dtype and however little the state matters.
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
        return TokenBytes(self.store.token_bytes.total + -(-self._state_bytes // TOKENS_A_STATE))

    @property
    def pool_bytes(self) -> int:
        return self.store.bytes + self._state_bytes * self.states.capacity

    def abandon(self) -> None:
        self._abandoned.set()

    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        """Feed rows already in their trees; logits [wanted, vocab] of these positions of the pass.

        Raises `PassAbandoned` once told to, and `OutOfMemory`.
        """
        # An earlier call for a pass that had just ended must not stop this one.
        self._abandoned.clear()
        found: dict[int, Tensor] = {}
        start = 0
        try:
            with torch.inference_mode():
                for tree, row in feeds:
                    self.states.discard(tree.nodes[name].slot for name in row.nodes)
                    stop = start + len(row.tokens)
                    numbers = {position - start for position in wanted if start <= position < stop}
                    for number, logits in self._row_logits(tree, row, numbers).items():
                        found[start + number] = logits
                    start = stop
                if not wanted:
                    return torch.empty(0, self.vocab_tokens, dtype=self.model.dtype, device=self.device)
                return torch.stack([found[position] for position in wanted])
        except torch.OutOfMemoryError as error:
            raise OutOfMemory("The device has no memory left for a pass.") from error

    def _row_logits(self, tree: SequenceTree, row: Row, wanted: set[int]) -> dict[int, Tensor]:
        """Feed one row; the logits [vocab] after its tokens of these numbers."""
        paths = RowPaths(tree, row)
        if not self._has_state:
            return self._batch_logits(paths.whole(), None, wanted)[0]
        found: dict[int, Tensor] = {}
        known, state = self.states.last(paths.known_slots)
        page_tokens, most_tokens = PAGE_TOKENS, MOST_PIECE_TOKENS
        if self._is_stepped:
            page_tokens = most_tokens = max(paths.stem_end, 1)
            if paths.stem_end - known > MOST_STEPS:
                known, state = 0, None
        for batch in paths.split(known, page_tokens=page_tokens, most_tokens=most_tokens):
            logits, cache = self._batch_logits(batch, state, wanted)
            found |= logits
            if len(batch.paths) == 1:
                state = cache.state()
                self.states.put(batch.paths[0][-1].slot, state)
        return found

    def _batch_logits(
        self, batch: PathBatch, state: ModelState | None, wanted: set[int]
    ) -> tuple[dict[int, Tensor], GatheredCache]:
        """Feed a batch and write its keys and values; the logits after the wanted tokens of the row."""
        places = {number: place for number, place in batch.places().items() if number in wanted}
        # The output projection is a large share of a small model: it is computed where it is wanted only.
        keep = sorted({token for _, token in places.values()}) or [batch.length - 1]
        logits, cache = self._forward(batch, state, keep=keep)
        cache.write(batch)
        column = {token: i for i, token in enumerate(keep)}
        return {number: logits[path, column[token]] for number, (path, token) in places.items()}, cache

    def _forward(
        self, batch: PathBatch, state: ModelState | None, *, keep: list[int]
    ) -> tuple[Tensor, GatheredCache]:
        """The logits [paths, tokens, vocab] of a batch, of the tokens to keep alone, and the cache after it."""
        slots = torch.tensor(batch.past, dtype=torch.int64, device=self.device)
        cache = GatheredCache(self._kinds, Past(slots, len(batch.paths), self.store, self._check), state)
        ids = torch.tensor(batch.padded(), dtype=torch.int64, device=self.device)
        kept = torch.tensor(keep, dtype=torch.int64, device=self.device)
        step_tokens = 1 if self._is_stepped and state is not None else batch.length
        is_whole = step_tokens == batch.length
        first, logits = len(batch.past), list[Tensor]()
        for part in torch.split(ids, step_tokens, 1):
            self._check()
            arguments: dict[str, Any] = {self._cache_parameter: cache, "use_cache": True}
            if self._takes_positions:
                # `generate` says the positions, and some models do not count them otherwise.
                positions = torch.arange(first, first + part.shape[1], device=self.device)
                arguments["position_ids"] = positions.expand_as(part)
                first += part.shape[1]
            if is_whole and self._keeps_logits:
                arguments["logits_to_keep"] = kept
            logits.append(self.model(input_ids=part, **arguments).logits)
        joined = torch.cat(logits, 1)
        return joined if is_whole and self._keeps_logits else joined[:, kept], cache

    def _check(self) -> None:
        if self._abandoned.is_set():
            raise PassAbandoned("The pass was abandoned.")
