"""A transformers model that runs packed passes: plan in, logits out."""

import inspect
import threading
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.attention import ATTENTION_NAME, register_packed_attention
from cosine_node.engine.base import OutOfMemory, Row
from cosine_node.engine.cuda_graphs import CudaGraphs
from cosine_node.engine.flat_decoder import FlatDecoder
from cosine_node.engine.kv_store import KvStore
from cosine_node.engine.pass_model import Feeds
from cosine_node.engine.pass_plan import PassPlan
from cosine_node.engine.support import UnsupportedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling


class PackedModel:
    """Wraps a causal LM for packed passes over a pool of `slots` token slots.

    Switches the model to `cosine_packed` attention and eval mode, and runs one token through it, which allocates
    the pool and shows the width of the vocabulary. With `pads_rows` short rows are computed as one rectangle, and
    those of known decoders in shape buckets: by default on CUDA. Raises `UnsupportedModel`.
    """

    attention_name: Final = ATTENTION_NAME

    def __init__(self, model: Any, *, slots: int, pads_rows: bool | None = None) -> None:
        register_packed_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        if model.config._attn_implementation != ATTENTION_NAME:
            raise UnsupportedModel(model.config.model_type, "its attention cannot be replaced")
        self.model = model.eval()
        self.device: torch.device = model.device
        self.store = KvStore(slots=slots)
        self._abandoned = threading.Event()
        self._pads_rows = self.device.type == "cuda" if pads_rows is None else pads_rows
        self._flat = FlatDecoder.of(self.model)
        self._graphs: CudaGraphs | None = None
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.vocab_tokens = self._warm_up()
        # Not before the pool is allocated: a graph holds its addresses.
        if self._pads_rows and self._flat is not None and self._flat.is_capturable:
            self._graphs = CudaGraphs(self._flat, self.store, self.device)

    def _warm_up(self) -> int:
        """Run one token through the model; the width of its vocabulary."""
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
        row = Row.chain(0, [0])
        tree.add(row, [0])
        return self.logits([(tree, row)], wanted=[0]).shape[1]

    @property
    def token_bytes(self) -> int:
        return self.store.token_bytes

    @property
    def pool_bytes(self) -> int:
        return self.store.bytes

    def abandon(self) -> None:
        """Stop the pass under way between two of its layers; called from another thread."""
        self._abandoned.set()

    def logits(self, feeds: Feeds, *, wanted: list[int]) -> Tensor:
        """Feed rows already in their trees; logits [wanted, vocab] of these positions of the pass.

        Raises `PassAbandoned` once told to, and `OutOfMemory`.
        """
        # An earlier call for a pass that had just ended must not stop this one.
        self._abandoned.clear()
        try:
            with torch.inference_mode():
                plan = PassPlan(
                    feeds,
                    store=self.store,
                    device=self.device,
                    pads_rows=self._pads_rows,
                    is_abandoned=self._abandoned.is_set,
                )
                logits = None if self._graphs is None else self._graphs.logits(plan, wanted)
                return self._decode(plan, wanted) if logits is None else logits
        except torch.OutOfMemoryError as error:
            raise OutOfMemory("The device has no memory left for a pass.") from error

    def _decode(self, plan: PassPlan, wanted: list[int]) -> Tensor:
        # The output projection is a large share of a small model: it is computed where it is wanted only.
        keep = None
        if len(wanted) < len(plan.tokens):
            keep = torch.tensor(wanted, dtype=torch.int64, device=self.device)
        if self._flat is not None:
            return self._flat(plan, keep)
        extra = {"logits_to_keep": keep} if keep is not None and self._keeps_logits else {}
        output: Tensor = self.model(
            input_ids=plan.input_ids,
            position_ids=plan.position_ids,
            use_cache=False,
            plan=plan,
            **extra,
        ).logits[0]
        return output if keep is None or self._keeps_logits else output[keep]
