"""Choice, loading and measurement of the layers that a node holds as a stage.

The sizes of a part follow from the configuration (`part_sizes`), so that layers are chosen, and options that do not
fit are refused, before any weight is fetched or read (`StageDraft`). The loaded part is tested like a whole model
and measured with invented activations.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from cosine_engine.base import Row, RowResult
from cosine_engine.blocks.experts import is_mixture
from cosine_engine.blocks.held_linear import HALF, HELD, held_bytes
from cosine_engine.blocks.matrix import BlockMatrix
from cosine_engine.blocks.model import replace_weights
from cosine_engine.compiled.model import hold_as_stored
from cosine_engine.curve import CostCurve, measure_curve
from cosine_engine.forward.partial_model import decoder_layers
from cosine_engine.forward.pass_model import lacks_memory
from cosine_engine.forward.support import (
    context_tokens,
    first_line,
    model_class_of,
    numerics_of,
    refuse_by_config,
)
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_engine.load_options import MEASURING, TESTING, LoadOptions
from cosine_engine.pool_size import AUTO, CARD_MEMORY_PART, USUAL_TOKENS, free_memory_bytes, parse_memory
from cosine_engine.torch.load_self_test import find_way, token_bytes_of
from cosine_engine.torch.loading import (
    StoredBlocks,
    block_layouts,
    check_options,
    check_stored,
    default_quantisation,
    hold_model,
    read_config,
    resolve_device,
    resolve_dtype,
)
from cosine_engine.torch.threads import limit_threads
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.host import StageEngine, StageModel, load_part
from cosine_node.stages.parts import PartSizes, size_text
from cosine_p2p.directory.coverage import lacked_most
from cosine_protocol.errors import UsageError
from cosine_protocol.stage import LayerRange


def part_sizes(
    config: Any, *, dtype: torch.dtype, file: GgufFile | None = None, held: str | None = None
) -> PartSizes:
    """The sizes of a model with this configuration. The matrices of a GGUF `file` keep their stored format.

    `held` is the one of `HELD` that linear layers are converted to, if any. Raises `UsageError`, also for a model
    that cannot be divided.
    """
    try:
        with torch.device("meta"):
            model = model_class_of(config)(config)
    except (ValueError, ImportError, RuntimeError) as error:
        raise UsageError(f"No model can be made of this configuration: {first_line(error)}") from error
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    # A converted output layer has a separate matrix.
    is_tied = output is not None and output.weight is embedding.weight and held is None
    bytes_of = partial(held_bytes, kind=held) if held is not None else _bytes_of
    if file is not None:
        # The whole model may be larger than the address space, so even unused memory must not be allocated.
        with torch.device("meta"):
            replace_weights(model, block_layouts(file, model, StoredBlocks.ALL, dtype=dtype))
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    # A shared weight counts once for each of its places, since each part holds all of it.
    layers = tuple(bytes_of(layer, dtype) for layer in decoder_layers(model))
    parts = (embedding, embedding if is_tied else output)
    ends = [0 if end is None else bytes_of(end, dtype) for end in parts]
    whole = bytes_of(model, dtype)
    common = whole - sum(layers) - ends[0] - (0 if is_tied else ends[1])
    experts = [module for module in model.modules() if is_mixture(module)]
    return PartSizes(
        layers_bytes=layers,
        embedding_bytes=ends[0],
        output_bytes=ends[1],
        common_bytes=max(0, common),
        experts_bytes=sum(bytes_of(module, dtype) for module in experts),
        expert_share=_expert_share(config, experts[0].num_experts) if experts else 1.0,
    )


def _expert_share(config: Any, experts: int) -> float:
    """The share of experts that a mixture uses for a token, by any known name in its configuration."""
    text = config.get_text_config()
    names = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")
    chosen = next((found for name in names if isinstance(found := getattr(text, name, None), int)), experts)
    return min(1.0, chosen / experts)


def _bytes_of(module: torch.nn.Module, dtype: torch.dtype) -> int:
    in_blocks = sum(each.planes.nbytes for each in module.modules() if isinstance(each, BlockMatrix))
    return in_blocks + sum(weight.numel() for weight in module.parameters()) * dtype.itemsize


class StageRehearsal(StageEngine):
    """Implements `Engine` by a stage without any chain, with invented activations, to measure its passes."""

    def __init__(self, model: StageModel) -> None:
        super().__init__(model, PagePool(tokens=model.slots))

    def forward(self, rows: Sequence[Row], activations: torch.Tensor | None = None) -> list[RowResult]:
        """Run one pass. Raises the errors of `StageEngine.forward`."""
        if activations is None and not self.model.layers.is_first:
            shape = count_tokens(rows), self.model.hidden_width
            made_up = torch.linspace(-1.0, 1.0, shape[0] * shape[1]).reshape(shape)
            activations = made_up.to(self.model.device, self.model.dtype)
        found = super().forward(rows, activations)
        if isinstance(found, list):
            return found
        # Wait for the GPU.
        _ = found[-1, -1].item()
        return [RowResult(()) for _ in rows]


WIDE_TOKENS: Final = 64
"""The longer pass whose cost a stage announces: the longest that verifiers measure as a tree."""
WEIGHTS_SHARE: Final = 0.75
"""Share of a stage's memory for weights if it chooses its layers; the rest is for keys and values."""
HEADS: Final = 2
"""A stage's pool has room for this number of heads with the default number of requests."""


class StageDraft:
    """A part of the model in a folder that is not loaded yet."""

    def __init__(
        self, folder: Path, name: str, choice: LoadOptions, *, layers: str, memory: str, requests: int
    ) -> None:
        """Raises `UsageError` for a model or option that cannot be used.

        `layers` is `8:16` or `auto`; `memory` for weights and pool is a size, a part of the free memory, or `auto`.
        `requests` is the number of requests of one head.
        """
        check_options(choice)
        self._folder, self._name = folder, name
        self._threads = choice.threads
        self._requests = requests
        config = self._config = read_config(str(folder))
        refuse_by_config(config)
        self._device = resolve_device(choice.device)
        self._dtype = resolve_dtype(choice.dtype, device=self._device, config=config)
        self._context_tokens = context_tokens(config)
        self._files = ModelFiles.in_folder(folder)
        check_stored(self._files, choice.quantize)
        file = self._file = self._files.gguf
        self._memory_bytes = _memory_bytes(memory, self._device)
        default = default_quantisation(config, file, dtype=choice.dtype, device=self._device)
        chosen = choice.quantize or default
        self._held = chosen if chosen in HELD and self._device.type == "cpu" else None
        sizes = partial(part_sizes, config, dtype=self._dtype, file=file)
        self.sizes: PartSizes = sizes(held=self._held)
        if self._held == HALF and choice.quantize is None and file is not None and not self._fits(layers):
            # In blocks it takes less.
            self._held, self.sizes = None, sizes()
        stored = None if file is None else file.weights
        self.numerics = numerics_of(self._dtype, stored, self._held)
        """The numerics of the loaded part."""
        # Wrong layers are refused before the network is used.
        self.named = None if layers == AUTO else self._named(layers)

    def _fits(self, text: str) -> bool:
        """True if the named layers, or all for `auto`, fit into memory."""
        whole = LayerRange.whole(self.sizes.layers)
        part = whole if text == AUTO else LayerRange.parse(text, layers=self.sizes.layers)
        return self._memory_bytes is None or self.sizes.of(part) <= WEIGHTS_SHARE * self._memory_bytes

    def _named(self, text: str) -> LayerRange:
        part = LayerRange.parse(text, layers=self.sizes.layers)
        if self._memory_bytes is not None and self.sizes.of(part) > self._memory_bytes:
            raise UsageError(
                f"Layers {part} of {part.layers} take {size_text(self.sizes.of(part))} of weights, and "
                f"{size_text(self._memory_bytes)} are allowed; hold fewer, or give more with --memory."
            )
        return part

    def choose(self, held: Collection[LayerRange]) -> LayerRange:
        """Choose the layers to hold, given those that others hold. Raises `UsageError`."""
        if self.named is not None:
            return self.named
        memory_bytes = math.inf if self._memory_bytes is None else self._memory_bytes
        token = token_bytes_of(self._config, self._dtype)
        layer_token_bytes = 0 if token is None else token.total / self.sizes.layers
        request_tokens = min(self._context_tokens, USUAL_TOKENS)

        def fits(part: LayerRange) -> bool:
            cache_bytes = request_tokens * layer_token_bytes * (part.end - part.first)
            weights_bytes = self.sizes.of(part)
            return weights_bytes <= WEIGHTS_SHARE * memory_bytes and weights_bytes + cache_bytes <= memory_bytes

        part = lacked_most(held, layers=self.sizes.layers, fits=fits)
        if part is None:
            assert self._memory_bytes is not None
            raise UsageError(
                f"Not even one layer of {self._name} fits into {size_text(self._memory_bytes)}, with the "
                "cache of one request; give more with --memory, free memory, or choose a smaller --dtype."
            )
        return part

    def load(
        self, part: LayerRange, *, measure_s: float, tell: Callable[[str], object] = lambda stage: None
    ) -> "LoadedStage":
        """Load and test the part, and measure it for about `measure_s`. Blocks. Raises `UsageError`.

        `tell` is called at the beginning of each stage of loading.
        """
        limit_threads(self._threads, self._files)
        try:
            model: Any = load_part(str(self._folder), part, dtype=self._dtype).to(self._device)
            if self._held is not None:
                hold_model(model, self._held)
            elif self._file is None:
                hold_as_stored(model)
            tell(TESTING)
            way = find_way(model)
            token_bytes = StageModel(model, part, slots=PAGE_TOKENS, way=way).token_bytes.total
            stage = StageModel(model, part, slots=self._pool_tokens(part, token_bytes), way=way)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            raise UsageError(
                f"Layers {part} and their KV cache do not fit into the memory of {self._device}; hold fewer, or "
                "give less with --memory."
            ) from error
        tell(MEASURING)
        curve = measure_curve(StageRehearsal(stage), clock=time.perf_counter, budget_s=measure_s)
        return LoadedStage(model=stage, curve=curve)

    def _pool_tokens(self, part: LayerRange, token_bytes: int) -> int:
        usual_tokens = min(self._context_tokens, USUAL_TOKENS)
        tokens = HEADS * max(self._requests * usual_tokens, self._context_tokens)
        if self._memory_bytes is not None:
            room_bytes = max(0, self._memory_bytes - self.sizes.of(part))
            tokens = min(tokens, room_bytes // token_bytes // PAGE_TOKENS * PAGE_TOKENS)
        if tokens < usual_tokens:
            raise UsageError(
                f"Beside layers {part} there is room for the keys and values of {tokens} tokens, and one request "
                f"takes {usual_tokens}; hold fewer layers, or give more with --memory."
            )
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """A loaded part of a model, and the cost of its passes."""

    model: StageModel
    curve: CostCurve


def _memory_bytes(text: str, device: torch.device) -> int | None:
    """The memory for weights and pool; None if the free memory is unknown. Raises `UsageError`."""
    size_bytes, part = parse_memory(text, option="--memory")
    if size_bytes is not None:
        return size_bytes
    if device.type == "cuda":
        free_bytes: int | None = torch.cuda.mem_get_info(device)[0]
        part = part or CARD_MEMORY_PART
    else:
        # Other programs need memory, too. A verifier's pool takes a quarter; here the weights count as well.
        free_bytes, part = free_memory_bytes(), part or 0.5
    return None if free_bytes is None else int(part * free_bytes)
