"""Loads the PyTorch engine of a model."""

import logging
import sys
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, TorchAoConfig
from transformers.utils import is_accelerate_available, is_torchao_available
from transformers.utils.logging import disable_progress_bar

from cosine_engine.blocks.experts import are_computed_here
from cosine_engine.blocks.groups import FOUR_BITS
from cosine_engine.blocks.held_linear import (
    BITS,
    HALF,
    HELD,
    READ_APART,
    has_layers_to_hold,
    hold,
)
from cosine_engine.blocks.matrix import SIZES, BlockEmbedding, BlockLayout
from cosine_engine.blocks.model import block_class, planes_name
from cosine_engine.compiled.model import hold_as_stored, is_known_kind
from cosine_engine.forward.flat_decoder import layers_of
from cosine_engine.forward.partial_model import copy_out_of_files, part_class
from cosine_engine.forward.pass_features import feature_bytes
from cosine_engine.forward.row_tiles import Padding
from cosine_engine.forward.support import (
    context_tokens,
    first_line,
    model_class_of,
    quantisation_of,
    refuse_by_config,
)
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.gguf.transformers_model import (
    rope_factors,
    stored_matrices,
    transformers_config,
    transformers_weights,
)
from cosine_engine.kv_pool import PAGE_TOKENS, WindowPages
from cosine_engine.load_options import TESTING, LoadOptions
from cosine_engine.pool_size import PoolTokens, free_memory_bytes
from cosine_engine.processor import reads_float16
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.gguf_trial import EXACT, check_against_llama
from cosine_engine.torch.invariance_self_test import find_row_tiles
from cosine_engine.torch.load_self_test import find_way
from cosine_engine.torch.pass_way import PassWay
from cosine_protocol.errors import UsageError
from cosine_protocol.stage import LayerRange

LOG = logging.getLogger(__name__)

DAMAGED: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The errors that transformers may raise for a configuration with invalid values."""
STORED: Final = "stored"
"""The quantisation of a GGUF file itself: matrices keep the file's format and are dequantised in each product."""
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes by their option values."""


def check_options(how: LoadOptions) -> None:
    """Raise `UsageError` for options that no model can have on this machine."""
    where, quantize = resolve_device(how.device), how.quantize
    if how.dtype != "auto":
        resolve_dtype(how.dtype, device=where, config=None)
    if quantize is None or quantize == STORED:
        return
    if quantize not in HELD:
        raise UsageError(f"'{quantize}' is not a supported quantisation; use {HALF}, int8, int4 or {STORED}.")
    if quantize == HALF or where.type == "cpu":
        if where.type != "cpu" or how.dtype not in ("auto", "float32"):
            instead = f"use --dtype {HALF} or drop --dtype" if quantize == HALF else "drop --dtype"
            raise UsageError(f"--quantize {quantize} requires a CPU and float32 activations; {instead}.")
        if quantize == HALF and not reads_float16():
            raise UsageError(f"This processor does not read {HALF} weights; drop --quantize.")
        return
    if quantize == "int4" and where.type != "cuda":
        raise UsageError(
            f"--quantize int4 requires a CUDA device or a CPU, not '{where.type}'; use --quantize int8."
        )
    if not is_torchao_available():
        raise UsageError(f"--quantize {quantize} requires torchao 0.15 or newer: pip install torchao.")
    if quantize == "int4" and not is_accelerate_available():
        raise UsageError("--quantize int4 requires the package accelerate: pip install accelerate.")


def load_engine(files: ModelFiles, how: LoadOptions) -> TorchEngine:
    """Load a model and return its engine.

    Raises `UsageError` for an unknown model or option, and its subclass `UnsupportedModel` for a model that cannot
    be run exactly.
    """
    check_options(how)
    config = read_config(files.folder)
    refuse_by_config(config)
    try:
        model = _held_model(files, config, how)
        if how.feature_layers and isinstance(embedding := model.get_input_embeddings(), BlockEmbedding):
            # A draft head has rows of the embedding in its own products.
            embedding.dequantise()
        how.tell(TESTING)
        way = find_way(model)
        if not way.is_packed:
            LOG.warning("%s models run with %s: slower than %s", config.model_type, way.value, PassWay.PACKED.value)
            if how.is_deterministic:
                raise UsageError(
                    f"--deterministic is not possible for models of type '{config.model_type}', which run with "
                    f"{way.value}; drop the option."
                )
        tiles = find_row_tiles(model) if how.is_deterministic and way is PassWay.PACKED else None
        pool, windows = _pool(model, way, how)
        return TorchEngine(
            model,
            pool_tokens=pool.tokens,
            way=way,
            known=how.known,
            grammars=how.grammars,
            padding=Padding(tiles=tiles),
            windows=windows,
            feature_layers=how.feature_layers,
        )
    except torch.OutOfMemoryError as error:
        where = resolve_device(how.device)
        raise UsageError(f"'{files.folder}' and its KV cache do not fit into the memory of {where}.") from error


def _held_model(files: ModelFiles, config: Any, how: LoadOptions) -> Any:
    """Load a model with its weights held as the options say."""
    device = resolve_device(how.device)
    dtype = resolve_dtype(how.dtype, device=device, config=config)
    check_stored(files, how.quantize)
    if how.quantize == STORED and how.feature_layers:
        raise UsageError("A draft head needs its target's embedding dequantised; drop --quantize stored.")
    stored = quantisation_of(config)
    if stored is not None and how.quantize not in (None, STORED):
        raise UsageError(f"'{files.folder}' is stored in {stored} and cannot be quantised again; drop --quantize.")
    quantize = how.quantize or default_quantisation(config, files.gguf, dtype=how.dtype, device=device)
    is_held = quantize in HELD and device.type == "cpu"
    if quantize in BITS and not is_held:
        return _quantised(files, quantize, dtype=dtype, device=device).to(device)
    # With converted weights, the model is never in memory in float32 as a whole.
    blocks = (
        StoredBlocks.LINEAR if quantize == HALF else StoredBlocks.NONE if quantize is None else StoredBlocks.ALL
    )
    load = partial(load_model, files, dtype=dtype, blocks=blocks)
    model = check_against_llama(files.gguf, load) if files.gguf is not None and how.is_served else load()
    model.to(device)
    if quantize is not None and is_held and not hold_model(model, quantize):
        raise UsageError(f"'{files.folder}' has no linear layers to convert to {quantize}; drop --quantize.")
    if quantize is None:
        hold_as_stored(model)
    return model


def check_stored(files: ModelFiles, quantize: str | None) -> None:
    """Raise `UsageError` if `STORED` requires a GGUF file, and the model has none."""
    if quantize == STORED and files.gguf is None:
        raise UsageError(
            f"--quantize {STORED} requires a GGUF file, which '{files.folder}' is not; drop --quantize."
        )


def _pool(model: Any, way: PassWay, how: LoadOptions) -> tuple[PoolTokens, WindowPages | None]:
    """Return the sizes of the pool of a loaded model. Raises `UsageError` if there is too little memory."""
    token = way.pass_model(model, slots=PAGE_TOKENS).token_bytes
    token = replace(token, total=token.total + feature_bytes(model, how.feature_layers))
    on_card = model.device.type == "cuda"
    if on_card:
        torch.cuda.empty_cache()
        free_bytes: int | None = torch.cuda.mem_get_info(model.device)[0]
    else:
        free_bytes = free_memory_bytes()
    size = how.pool_size.tokens(
        token, context_tokens=context_tokens(model.config), free_bytes=free_bytes, on_card=on_card
    )
    if size.windowed is None or not way.is_packed:
        return size, None
    pages = -(-size.tokens // PAGE_TOKENS)
    return size, WindowPages(pages=pages, tokens=size.windowed, window_tokens=token.window_tokens)


def default_quantisation(config: Any, file: GgufFile | None, *, dtype: str, device: torch.device) -> str | None:
    """Return the default `quantize` of a model: one of `HELD`, or None for weights in the model's dtype.

    On a CPU, the blocks of a GGUF file are used as they are if passes can be compiled. Other weights of at most 16
    bits are held in `HALF`.
    """
    if device.type != "cpu" or dtype != "auto" or quantisation_of(config) is not None:
        return None
    stored = str(config.get_text_config().dtype).removeprefix("torch.")
    if file.is_wide if file is not None else stored not in ("bfloat16", "float16"):
        return None
    with torch.device("meta"):
        model = model_class_of(config)(config)
    is_grouped = file is not None and file.weights in SIZES and file.weights not in EXACT
    if file is not None and is_grouped and all(map(is_known_kind, layers_of(model))):
        return "int4" if file.weights in FOUR_BITS else "int8"
    return HALF if reads_float16() and has_layers_to_hold(model) else None


def hold_model(model: Any, quantize: str) -> int:
    """Call `hold` and record the quantisation in the model's configuration."""
    model.config.quantization_config = {"quant_method": quantize}
    return hold(model, quantize)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the first of CUDA, MPS and CPU. Raises `UsageError` if absent."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"'{name}' is not a device; use auto, cpu, cuda, cuda:0 or mps.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"'{name}' is not a supported device; use auto, cpu, cuda, cuda:0 or mps.")
    is_present = device.type == "cpu" or torch.backends.mps.is_available()
    if device.type == "cuda":
        is_present = (device.index or 0) < torch.cuda.device_count()
    if not is_present:
        raise UsageError(f"This machine has no device '{name}'; use --device cpu or auto.")
    return device


def resolve_dtype(name: str, *, device: torch.device, config: Any) -> torch.dtype:
    """Return the dtype of a name; `auto` is float32 on a CPU, else as stored. Raises `UsageError` if unknown."""
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise UsageError(f"'{name}' is not a supported dtype; use auto, {', '.join(DTYPES)}.")
    stored = config.get_text_config().dtype
    # CPUs are slower in 16 bits than in 32 unless they have 16-bit instructions.
    if device.type == "cpu":
        return torch.float32
    return stored if isinstance(stored, torch.dtype) else DTYPES.get(str(stored), torch.float32)


def read_config(folder: Path | str) -> Any:
    """Return the configuration of the model in a folder. Raises `UsageError` if there is none of a known type."""
    if not Path(folder).is_dir():
        raise UsageError(f"There is no folder '{folder}' to load a model from.")
    file = GgufFile.in_folder(Path(folder))
    if file is not None:
        # Raises `UsageError` for a file that PyTorch cannot run; the folder's own configuration is incomplete then.
        transformers_config(file)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except StrictDataclassError as error:
        # The reason is on the second line.
        raise UsageError(f"No model can be read from '{folder}': {' '.join(str(error).split())}") from error
    except DAMAGED as error:
        raise UsageError(f"No model can be read from '{folder}': {first_line(error)}") from error


def _quantised(files: ModelFiles, kind: str, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Load a model whose linear layers are quantised one by one as they are read; activations keep their dtype."""
    # Not an import statement: the package has no types and is optional.
    schemes, tensors = import_module("torchao.quantization"), import_module("torchao.utils")
    # torchao's inductor settings would change float32 products of other models in the process.
    if kind == "int8":
        scheme = TorchAoConfig(schemes.Int8WeightOnlyConfig(set_inductor_config=False))
        model = load_model(files, dtype=dtype, quantization_config=scheme)
    elif dtype is torch.bfloat16:
        # A group size that its kernel supports.
        packed = schemes.Int4WeightOnlyConfig(
            group_size=64, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
        # This format is created on its device.
        model = load_model(files, dtype=dtype, quantization_config=TorchAoConfig(packed), device_map={"": device})
    else:
        raise UsageError("--quantize int4 requires bfloat16 activations; add --dtype bfloat16.")
    if not any(isinstance(weight, tensors.TorchAOBaseTensor) for weight in model.parameters()):
        raise UsageError(f"'{files.folder}' has no linear layers to convert to {kind}; drop --quantize.")
    return model


class StoredBlocks(Enum):
    """The matrices of a GGUF file that keep their stored block format."""

    NONE = auto()
    LINEAR = auto()
    """The matrices of linear layers; embedding and experts are dequantised."""
    ALL = auto()


def load_model(
    files: ModelFiles, *, dtype: torch.dtype, blocks: StoredBlocks = StoredBlocks.NONE, **quantisation: Any
) -> Any:
    """Load a transformers model.

    `blocks` is for a GGUF file, `quantisation` for `from_pretrained`. Raises `UsageError`.
    """
    # No foreign code or pickle is executed: weights are safetensors or GGUF, classes are those of transformers.
    hide_progress_in_logs()
    try:
        if files.gguf is not None:
            return load_gguf_model(
                files.gguf,
                read_config(files.folder),
                dtype=dtype,
                blocks=blocks,
                attn_implementation="eager",
                **quantisation,
            )
        model = AutoModelForCausalLM.from_pretrained(
            files.folder,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            use_safetensors=True,
            **quantisation,
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"The weights of '{files.folder}' cannot be read: {first_line(error)}") from error
    copy_out_of_files(model)
    return model


def load_gguf_model(
    file: GgufFile,
    config: Any,
    *,
    dtype: torch.dtype,
    blocks: StoredBlocks = StoredBlocks.NONE,
    layers: LayerRange | None = None,
    **options: Any,
) -> Any:
    """Load the model of `config`, which was unfolded from the file, or some `layers` of it (`part_class`).

    Weights are dequantised once, those in `blocks` in each product, with equal results. The type of the stored
    weights is recorded in `config` for `numerics`. `options` are those of `from_pretrained`. Raises `UsageError`
    for a file with missing or unknown weights.
    """
    config.gguf_weights = file.weights
    model_class = model_class_of(config)
    with torch.device("meta"):
        names = list(model_class(config).state_dict())
        model_class = model_class if layers is None else part_class(model_class, layers)
        empty = model_class(config)
    layouts = block_layouts(file, empty, blocks, dtype=dtype)
    dense = empty.state_dict().keys() - layouts.keys()
    weights = {
        name: torch.from_numpy(values).to(dtype) for name, values in transformers_weights(file, names, wanted=dense)
    }
    for name, stored in stored_matrices(file, layouts).items():
        rows = torch.from_numpy(np.array(stored.read(file)))
        weights[planes_name(name)] = layouts[name].laid(rows)
    model, loaded = block_class(model_class, layouts).from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True, **options
    )
    missing = set(loaded["missing_keys"]) - set(model.all_tied_weights_keys)
    for what, names in {"lacks": missing, "has an unknown": loaded["unexpected_keys"]}.items():
        if names:
            where = (
                f"a model of the kind {file.architecture}" if layers is None else f"layers {layers} of its model"
            )
            raise UsageError(f"{file.path} {what} {min(names)}, for {where}.")
    factors = rope_factors(file)
    if factors is not None:
        rotary = model.get_decoder().rotary_emb
        rotary.inv_freq = rotary.inv_freq / torch.from_numpy(factors).to(rotary.inv_freq)
    return model


def block_layouts(
    file: GgufFile, model: Any, blocks: StoredBlocks, *, dtype: torch.dtype
) -> dict[str, BlockLayout]:
    """Return the layouts, by name, of the weights of a model or a part of one that keep the file's blocks.

    These are linear layers, with `StoredBlocks.ALL` also experts and the embedding, whose blocks are smaller than
    numbers of the dtype.
    """
    found: dict[str, BlockLayout] = {}
    if blocks is StoredBlocks.NONE:
        return found
    embedding = model.get_input_embeddings()
    for name, stored in stored_matrices(file, model.state_dict()).items():
        module = model.get_submodule(name.rpartition(".")[0])
        is_embedding = module is embedding and isinstance(module, torch.nn.Embedding)
        is_linear = type(module) is torch.nn.Linear and not name.removesuffix(".weight").endswith(READ_APART)
        is_known = are_computed_here(module) if stored.experts is not None else is_linear or is_embedding
        if stored.kind in SIZES and is_known and (is_linear or blocks is StoredBlocks.ALL):
            layout = BlockLayout(stored.kind, stored.rows, stored.columns, experts=stored.experts)
            if layout.size_bytes < stored.rows * stored.columns * (stored.experts or 1) * dtype.itemsize:
                found[name] = layout
    return found


def hide_progress_in_logs() -> None:
    """Disable transformers' progress bars unless stderr is a terminal."""
    if not sys.stderr.isatty():
        disable_progress_bar()
