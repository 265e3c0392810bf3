"""A GGUF file that PyTorch is to serve, tried against llama.cpp, where that is installed: the same logits?

Both compute with the same weights, so that they differ by rounding; llama.cpp rounds what it multiplies to eight
bits where weights have few. A setting or a tensor that was read wrongly is another model.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from platformdirs import user_cache_dir

from cosine_node.engine.pool_size import free_memory_bytes
from cosine_node.gguf.file import GgufFile
from cosine_node.processes.llama import ask_llama
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

LLAMA_PACKAGE: Final = "xllamacpp"
LLAMA_TIMEOUT_S: Final = 300.0
"""In so long a hard disk of 100 MB/s reads 30 GB. What takes longer is served untried; what hangs delays the start
of the node by as much."""
TOKENS: Final = 32
MOST_COMPARED: Final = 4096
"""Logits after each token, of a vocabulary that may be larger."""
MOST_MEMORY: Final = 0.5
"""Of what is free: the part that the file may take, which llama.cpp may copy."""
MOST_ERROR: Final = 0.1
"""In deviations of the logits, of the median token; 0.03 was measured at most, in bfloat16."""
MOST_ROUNDED_ERROR: Final = 0.2
"""The same where llama.cpp rounds to eight bits: of SmolLM2 in four bits 0.05 was measured, in bfloat16 0.07. With
two matrices of one of its 30 layers in each other's place it is 0.26, with the rows of rotary projections left as
they lie 0.35. What moves less, as a base of the rotary embedding ten times as large does (0.11), passes."""

EXACT: Final = ("F32", "F16", "BF16")
"""The types of weights with which llama.cpp rounds no more than they are."""

Logits = Sequence[Sequence[float]]
LlamaLogits = Callable[[Path, Sequence[int], int], Logits]
"""llama.cpp's logits of a file after each of some tokens, one in so many. Raises `UsageError` if it tells none."""


def check_against_llama(file: GgufFile, load: Callable[[], Any], *, cache_folder: Path | None = None) -> Any:
    """The model that `load` gives, tried first. What was tried is remembered in the cache.

    Raises `UsageError` for a model with other logits than llama.cpp has of the same file.
    """
    try:
        build = version(LLAMA_PACKAGE)
    except PackageNotFoundError:
        return load()
    mark = (cache_folder or Path(user_cache_dir("cosine-p2p")) / "gguf-trials") / _name(file, build)
    size_bytes = sum(part.stat().st_size for part in file.parts)
    free_bytes = free_memory_bytes()
    is_large = free_bytes is not None and size_bytes > MOST_MEMORY * free_bytes
    if mark.exists() or is_large:
        return load()
    model = tried(file, load, llama_logits)
    try:
        replace_text(mark, "")
    except OSError as error:
        LOG.warning("%s: %s will be tried again", error, file.path)
    return model


def tried(file: GgufFile, load: Callable[[], Any], asked: LlamaLogits) -> Any:
    """The model that `load` gives; where llama.cpp tells no logits as it is. Raises `UsageError`."""
    tokens = [(5 + 7919 * place) % file.vocab_tokens for place in range(TOKENS)]
    step = -(-file.vocab_tokens // MOST_COMPARED)
    try:
        # Before the weights are here: it takes memory of its own.
        expected = torch.tensor(asked(file.parts[0], tokens, step))
    except UsageError as error:
        LOG.info("%s was not tried against llama.cpp: %s", file.path, error)
        return load()
    model = load()
    with torch.inference_mode():
        ids = torch.tensor([tokens], device=model.device)
        found = model(input_ids=ids, use_cache=False).logits[0, :, ::step].float().cpu()
    apart = error_of(found, expected)
    allowed = MOST_ERROR if file.weights in EXACT else MOST_ROUNDED_ERROR
    # Written so that NaN is off.
    if not apart <= allowed:
        raise UsageError(
            f"{file.path} cannot be run from GGUF in PyTorch: its logits are {apart:.2g} deviations from those "
            "that llama.cpp has of the same file; use the model's own folder, or --engine llama."
        )
    return model


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The error after the median token, of logits [tokens, some], but for a constant: the root of its mean square.

    In standard deviations of what was expected.
    """
    error = found - expected
    errors = error.std(dim=1) / expected.std(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return float(errors.median())


def llama_logits(file: Path, tokens: Sequence[int], step: int) -> Logits:
    """Asks the installed llama.cpp, in a process of its own."""
    logits: Logits = ask_llama("logits", file, list(tokens), step, timeout_s=LLAMA_TIMEOUT_S)
    return logits


def _name(file: GgufFile, build: str) -> str:
    """Names what was tried: the weights, and whoever computes with them."""
    packages = [version(package) for package in ("torch", "transformers")]
    return hashlib.sha256(json.dumps([file.digest.hex(), build, *packages]).encode()).hexdigest()
