"""From a Hugging Face id or a folder to an engine, or to one sentence that says why not."""

import os
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from cosine_node.engine.probe import check_exactness
from cosine_node.engine.support import refuse_by_config
from cosine_node.engine.torch_engine import TorchEngine
from cosine_protocol.errors import UsageError

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_engine(
    source: str, *, dtype: str = "auto", device: str = "auto", pool_tokens: int = 16_384
) -> TorchEngine:
    """An engine around the model at `source`, with a KV pool of `pool_tokens` tokens.

    `dtype` is auto, float32, bfloat16 or float16; auto means float32 on a CPU and the stored one elsewhere.
    `device` is auto, cpu, cuda, cuda:N or mps. Raises `UsageError` for an unknown model, dtype or device, and
    its kind `UnsupportedModel` for a model packed passes are not exact for.
    """
    where = resolve_device(device)
    config = _config(source)
    refuse_by_config(config)
    model = _model(source, dtype=resolve_dtype(dtype, device=where, config=config))
    try:
        check_exactness(model.to(where))
        return TorchEngine(model, pool_tokens=pool_tokens)
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"'{source}' and a pool of {pool_tokens} tokens do not fit into the memory of {where}."
        ) from error


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes the first of CUDA, MPS and CPU. Raises `UsageError` if absent."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"'{name}' is no device; use auto, cpu, cuda, cuda:0 or mps.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"'{name}' is no supported device; use auto, cpu, cuda, cuda:0 or mps.")
    if not _is_present(device):
        raise UsageError(f"This machine has no device '{name}'; use --device cpu or auto.")
    return device


def _is_present(device: torch.device) -> bool:
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu" or torch.backends.mps.is_available()


def resolve_dtype(name: str, *, device: torch.device, config: Any) -> torch.dtype:
    """The dtype of that name; `auto` is float32 on a CPU, else as stored. Raises `UsageError` if unknown."""
    if name == "auto":
        stored = config.get_text_config().dtype
        return torch.float32 if device.type == "cpu" or stored is None else _as_dtype(stored)
    if name not in DTYPES:
        raise UsageError(f"'{name}' is no supported dtype; use auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def _as_dtype(stored: Any) -> torch.dtype:
    return stored if isinstance(stored, torch.dtype) else DTYPES.get(str(stored), torch.float32)


def _config(source: str) -> Any:
    if _looks_like_a_path(source) and not Path(source).is_dir():
        raise UsageError(f"There is no folder '{source}' to load a model from.")
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"No model can be read from '{source}': {_first_line(error)}") from error


def _model(source: str, *, dtype: torch.dtype) -> Any:
    if not sys.stderr.isatty():
        disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="eager", trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"The weights of '{source}' cannot be read: {_first_line(error)}") from error


def _looks_like_a_path(source: str) -> bool:
    return source.startswith((".", "~")) or os.path.isabs(source) or source.count("/") > 1


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
