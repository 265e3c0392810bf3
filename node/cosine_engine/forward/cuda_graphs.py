"""Passes of few tokens as CUDA graphs: each shape bucket is captured once and then replayed.

A pass over a few tokens launches hundreds of small kernels, which takes longer than running them; a replayed graph
is one launch. A graph reads and writes tensors of fixed addresses and sizes, so a pass is copied into the tensors
of its bucket. Without CUDA, the pass is computed directly on the same tensors, for tests.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cosine_engine.forward.flat_decoder import FlatDecoder
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.pass_features import PassFeatures
from cosine_engine.forward.pass_plan import (
    AttentionCall,
    BatchShape,
    Indices,
    PassCalls,
    PassPlan,
    bucket_of,
    pad,
)
from cosine_engine.kv_pool import Integers
from cosine_p2p.storage.memory import Remembered

MAX_BUCKETS: Final = 48
"""Bounds memory: each bucket holds the activations of one pass; the least recently used one is dropped."""


class CudaGraphs:
    """The captured shape buckets of one decoder."""

    def __init__(self, decoder: FlatDecoder, store: KvStore, features: PassFeatures, device: torch.device) -> None:
        self._decoder = decoder
        self._store = store
        self._features = features
        self._device = device
        self._passes = Remembered[BatchShape, BucketPass](MAX_BUCKETS)
        # Passes run one at a time and their logits are copied out, so they can share memory.
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor | None:
        """Return logits [wanted, vocab] at these positions of a pass; None if it has no shape bucket."""
        bucket = bucket_of(BatchShape.around(plan.masks))
        if bucket is None:
            return None
        found = self._passes.get(bucket) or BucketPass(
            self._decoder, self._store, self._features, bucket, self._device, memory=self._memory
        )
        self._passes.note(bucket, found)
        return found.logits(plan, wanted)


class BucketPass:
    """The pass of one shape bucket: a `DecoderPlan` with fixed tensors, and on CUDA its graph.

    The keys and values of padding tokens are written to the store's spare slot, which is never read.
    """

    def __init__(
        self,
        decoder: FlatDecoder,
        store: KvStore,
        features: PassFeatures,
        shape: BatchShape,
        device: torch.device,
        *,
        memory: Any = None,
    ) -> None:
        """`memory` is the handle of a graph pool."""
        self.store = store
        self._features = features
        # A replay writes to the same addresses as its capture, so each graph has its own tensors.
        self._seen = features.room()
        self._memory = memory
        self._decoder = decoder
        self._shape = shape
        is_cuda = device.type == "cuda"
        # All integers are in one tensor, so that one copy takes them to the device: tokens, positions, written
        # slots and wanted rows, one per token each, then the slots to read.
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
        self.written = self.window_written = Indices(0, shape.tokens, written)
        self._call: AttentionCall | None = None
        self._graph = torch.cuda.CUDAGraph() if is_cuda else None
        self._captured: Tensor | None = None

    def check(self) -> None:
        """Do nothing: the pass is too short to be abandoned."""

    def calls(self, window: int | None) -> PassCalls:
        del window
        if self._call is None:
            queries, slots = Indices(0, self._shape.tokens), Indices(0, len(self._slots), self._slots)
            self._call = AttentionCall(queries, slots, sequences=self._shape.sequences, hidden=self._hidden)
        return PassCalls((self._call,), None)

    @property
    def attention_tiles(self) -> None:
        return None

    def logits(self, plan: PassPlan, wanted: Sequence[int]) -> Tensor:
        """Return logits [wanted, vocab] at these positions of a pass that fits into the bucket."""
        places = self._fill(plan, wanted)
        if self._graph is None:
            logits = self._decode()
        else:
            if self._captured is None:
                self._captured = self._capture(self._graph)
            self._graph.replay()
            logits = self._captured
        self._features.keep(plan.slots, places, self._seen)
        return logits.index_select(0, self._wanted[: len(wanted)])

    def _fill(self, plan: PassPlan, wanted: Sequence[int]) -> Integers:
        """Copy a pass into the fixed tensors; return the places of its tokens there."""
        padded = pad(plan.masks, self._shape)
        tokens, positions, written, rows, slots = np.split(
            self._staged.numpy(), np.cumsum([self._shape.tokens] * 4)
        )
        tokens.fill(0)
        positions.fill(0)
        # Slots are numbered from 0, so this is the spare one.
        written.fill(self.store.slots)
        tokens[padded.token_indices] = plan.tokens
        positions[padded.token_indices] = plan.positions
        written[padded.token_indices] = plan.slots
        rows[: len(wanted)] = padded.token_indices[list(wanted)]
        slots[:] = padded.slots.ravel()
        self._staged_hidden.numpy()[:] = padded.hidden
        # The staging tensors are free before the next pass: reading the logits waits for this pass.
        self._numbers.copy_(self._staged, non_blocking=True)
        self._hidden.copy_(self._staged_hidden, non_blocking=True)
        return padded.token_indices

    def _capture(self, graph: torch.cuda.CUDAGraph) -> Tensor:
        """Capture the pass; return the tensor that each replay writes the logits to."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Warm-up passes, in which libraries initialise themselves (required by PyTorch).
            for _ in range(2):
                self._decode()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, pool=self._memory):
            logits = self._decode()
        return logits

    def _decode(self) -> Tensor:
        # Each run, and thus each replay, builds the mask from the filled tensors.
        self._call = None
        return self._decoder(self, None, seen=self._seen)
