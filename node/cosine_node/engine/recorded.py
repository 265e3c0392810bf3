"""Passes of few tokens in fixed shapes: on CUDA each shape is recorded as a graph once and then replayed.

A pass over a few tokens launches hundreds of small kernels, which takes longer than they run; a replayed graph is
one launch. Its tensors have fixed places and sizes, so a pass is filled into the next larger shape of a short list.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cosine_node.engine.flat_decoder import FlatDecoder
from cosine_node.engine.grid import GridShape, laid_out
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.pass_plan import FEW_QUERIES, Part, PassPlan, Places

MAX_TOKENS: Final = 64
"""Passes of more tokens are bound by arithmetic; launching them costs little beside it."""
LEAST_KEYS: Final = 128
MAX_SHAPES: Final = 48
"""Recorded shapes kept, the least recently used is dropped; each holds the activations of one pass."""
WARM_UPS: Final = 2


def fitted(shape: GridShape) -> GridShape | None:
    """The recorded shape that holds one, or None for a pass that is not worth recording."""
    if shape.queries > FEW_QUERIES:
        return None
    fit = GridShape(
        sequences=_power_of_two(shape.sequences),
        queries=_power_of_two(shape.queries),
        keys=_power_of_two_and_a_half(max(shape.keys, LEAST_KEYS)),
    )
    return fit if fit.tokens <= MAX_TOKENS else None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _power_of_two_and_a_half(number: int) -> int:
    power = _power_of_two(number)
    return power * 3 // 4 if number <= power * 3 // 4 else power


class RecordedPasses:
    """The recorded shapes of one decoder."""

    def __init__(self, decoder: FlatDecoder, store: KvStore, device: torch.device) -> None:
        self._decoder = decoder
        self._store = store
        self._device = device
        self._passes: OrderedDict[GridShape, RecordedPass] = OrderedDict()
        # Passes run one after the other and their logits are copied out: they can share memory.
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor | None:
        """Logits [wanted, vocab] at these positions of a pass; None where it has no recorded shape."""
        shape = fitted(GridShape.around(plan.sights))
        if shape is None:
            return None
        found = self._passes.pop(shape, None) or RecordedPass(
            self._decoder, self._store, shape, self._device, memory=self._memory
        )
        self._passes[shape] = found
        if len(self._passes) > MAX_SHAPES:
            self._passes.popitem(last=False)
        return found.logits(plan, wanted)


class RecordedPass:
    """One shape: fixed tensors that a pass is filled into, and on CUDA the graph that reads them.

    What pads a shape is written to the store's spare slot, which nobody reads.
    """

    def __init__(
        self, decoder: FlatDecoder, store: KvStore, shape: GridShape, device: torch.device, *, memory: Any = None
    ) -> None:
        """`memory` is the handle of a graph pool."""
        self.store = store
        self._memory = memory
        self._decoder = decoder
        self._shape = shape
        is_cuda = device.type == "cuda"
        # Tokens, positions, slots written, wanted rows; then the slots read.
        counts = [shape.tokens] * 4 + [shape.sequences * shape.keys]
        self._staged = torch.zeros(sum(counts), dtype=torch.int64, pin_memory=is_cuda)
        self._staged_hidden = torch.zeros(
            (shape.sequences, shape.queries, shape.keys), dtype=torch.bool, pin_memory=is_cuda
        )
        self._numbers = self._staged.to(device, copy=True)
        self._hidden = self._staged_hidden.to(device, copy=True)
        tokens, positions, written, self._wanted, self._slots = torch.split_with_sizes(self._numbers, counts)
        self.input_ids = tokens[None]
        self.position_ids = positions[None]
        self.written = Places(0, shape.tokens, written)
        self.order = None
        self._part: Part | None = None
        self._graph = torch.cuda.CUDAGraph() if is_cuda else None
        self._recorded: Tensor | None = None

    def check(self) -> None:
        """A recorded pass is too short to be abandoned."""

    def parts(self, window: int | None) -> Sequence[Part]:
        del window
        if self._part is None:
            rows, slots = Places(0, self._shape.tokens), Places(0, len(self._slots), self._slots)
            self._part = Part(rows, slots, sequences=self._shape.sequences, hidden=self._hidden)
        return [self._part]

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor:
        """Logits [wanted, vocab] at these positions of a pass that fits."""
        self._fill(plan, wanted)
        return self._run().index_select(0, self._wanted[: len(wanted)])

    def _fill(self, plan: PassPlan, wanted: Sequence[int]) -> None:
        grid = laid_out(plan.sights, self._shape)
        tokens, positions, written, rows, slots = np.split(
            self._staged.numpy(), np.cumsum([self._shape.tokens] * 4)
        )
        tokens.fill(0)
        positions.fill(0)
        written.fill(self.store.spare_slot)
        tokens[grid.places], positions[grid.places], written[grid.places] = plan.tokens, plan.positions, plan.slots
        rows[: len(wanted)] = grid.places[list(wanted)]
        slots[:] = grid.slots.ravel()
        self._staged_hidden.numpy()[:] = grid.hidden
        # The staging area is free again before the next pass: whoever reads the logits waits for this one.
        self._numbers.copy_(self._staged, non_blocking=True)
        self._hidden.copy_(self._staged_hidden, non_blocking=True)

    def _run(self) -> Tensor:
        if self._graph is None:
            return self._decode()
        if self._recorded is None:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._decode()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self._graph, pool=self._memory):
                self._recorded = self._decode()
        self._graph.replay()
        return self._recorded

    def _decode(self) -> Tensor:
        # The mask is made from the filled tensors by each run, and so by each replay.
        self._part = None
        return self._decoder(self, None)
