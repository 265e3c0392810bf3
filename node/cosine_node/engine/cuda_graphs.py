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
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.pass_plan import FEW_QUERIES, AttentionCall, Indices, PassPlan
from cosine_node.engine.shape_buckets import BatchShape, pad

MAX_TOKENS: Final = 64
"""Passes of more tokens are bound by arithmetic; launching them costs little beside it."""
LEAST_KEYS: Final = 128
MAX_BUCKETS: Final = 48
"""Recorded shapes kept, the least recently used is dropped; each holds the activations of one pass."""
WARM_UPS: Final = 2


def bucket_of(shape: BatchShape) -> BatchShape | None:
    """The recorded shape that holds one, or None for a pass that is not worth recording."""
    if shape.queries > FEW_QUERIES:
        return None
    fit = BatchShape(
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


class CudaGraphs:
    """The recorded shapes of one decoder."""

    def __init__(self, decoder: FlatDecoder, store: KvStore, device: torch.device) -> None:
        self._decoder = decoder
        self._store = store
        self._device = device
        self._passes: OrderedDict[BatchShape, BucketPass] = OrderedDict()
        # Passes run one after the other and their logits are copied out: they can share memory.
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor | None:
        """Logits [wanted, vocab] at these positions of a pass; None where it has no recorded shape."""
        shape = bucket_of(BatchShape.around(plan.masks))
        if shape is None:
            return None
        found = self._passes.pop(shape, None) or BucketPass(
            self._decoder, self._store, shape, self._device, memory=self._memory
        )
        self._passes[shape] = found
        if len(self._passes) > MAX_BUCKETS:
            self._passes.popitem(last=False)
        return found.logits(plan, wanted)


class BucketPass:
    """One shape: fixed tensors that a pass is filled into, and on CUDA the graph that reads them.

    What pads a shape is written to the store's spare slot, which nobody reads.
    """

    def __init__(
        self, decoder: FlatDecoder, store: KvStore, shape: BatchShape, device: torch.device, *, memory: Any = None
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
        self.written = Indices(0, shape.tokens, written)
        self.order = None
        self._call: AttentionCall | None = None
        self._graph = torch.cuda.CUDAGraph() if is_cuda else None
        self._captured: Tensor | None = None

    def check(self) -> None:
        """A recorded pass is too short to be abandoned."""

    def calls(self, window: int | None) -> Sequence[AttentionCall]:
        del window
        if self._call is None:
            rows, slots = Indices(0, self._shape.tokens), Indices(0, len(self._slots), self._slots)
            self._call = AttentionCall(rows, slots, sequences=self._shape.sequences, hidden=self._hidden)
        return [self._call]

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor:
        """Logits [wanted, vocab] at these positions of a pass that fits."""
        self._fill(plan, wanted)
        return self._run().index_select(0, self._wanted[: len(wanted)])

    def _fill(self, plan: PassPlan, wanted: Sequence[int]) -> None:
        padded = pad(plan.masks, self._shape)
        tokens, positions, written, rows, slots = np.split(
            self._staged.numpy(), np.cumsum([self._shape.tokens] * 4)
        )
        tokens.fill(0)
        positions.fill(0)
        written.fill(self.store.spare_slot)
        tokens[padded.places], positions[padded.places], written[padded.places] = (
            plan.tokens,
            plan.positions,
            plan.slots,
        )
        rows[: len(wanted)] = padded.places[list(wanted)]
        slots[:] = padded.slots.ravel()
        self._staged_hidden.numpy()[:] = padded.hidden
        # The staging area is free again before the next pass: whoever reads the logits waits for this one.
        self._numbers.copy_(self._staged, non_blocking=True)
        self._hidden.copy_(self._staged_hidden, non_blocking=True)

    def _run(self) -> Tensor:
        if self._graph is None:
            return self._decode()
        if self._captured is None:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._decode()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self._graph, pool=self._memory):
                self._captured = self._decode()
        self._graph.replay()
        return self._captured

    def _decode(self) -> Tensor:
        # The mask is made from the filled tensors by each run, and so by each replay.
        self._call = None
        return self._decoder(self, None)
