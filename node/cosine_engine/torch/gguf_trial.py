"""Comparison of a GGUF file in PyTorch with llama.cpp, if that is installed.

Both compute with the same weights, so that their logits differ only by rounding; for weights of few bits, llama.cpp
rounds activations to eight bits. Larger differences mean that a setting or a tensor was read wrongly.
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

from cosine_engine.gguf.file import GgufFile
from cosine_engine.pool_size import free_memory_bytes
from cosine_engine.processes.answer import ask_llama
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

LLAMA_PACKAGE: Final = "xllamacpp"
LLAMA_TIMEOUT_S: Final = 300.0
"""The time in which a hard disk of 100 MB/s reads 30 GB. A file that takes longer is served unchecked; a hanging
llama.cpp delays the node's start by this time."""
TOKENS: Final = 32
MOST_COMPARED: Final = 4096
"""Maximum number of logits that are compared after each token."""
MOST_MEMORY: Final = 0.5
"""Maximum size of the file as a fraction of free memory, since llama.cpp may copy it."""
MOST_ERROR: Final = 0.1
"""Maximum error of the median token in standard deviations of the logits; up to 0.03 was measured, in bfloat16."""
MOST_ROUNDED_ERROR: Final = 0.2
"""The same if llama.cpp rounds activations to eight bits. For SmolLM2 in four bits, 0.05 was measured, and 0.07 in
bfloat16. With two matrices of one of its 30 layers exchanged it is 0.26, with rows of rotary projections not
permuted 0.35. Faults with less effect, such as a rotary base ten times as large (0.11), are not detected."""

EXACT: Final = ("F32", "F16", "BF16")
"""Weight types for which llama.cpp does not round activations further."""

Logits = Sequence[Sequence[float]]
LlamaLogits = Callable[[Path, Sequence[int], int], Logits]
"""Return llama.cpp's logits of a file after each token, every n-th of them. Raises `UsageError` if unavailable."""


def check_against_llama(file: GgufFile, load: Callable[[], Any], *, cache_folder: Path | None = None) -> Any:
    """Load a model with `load` and compare it with llama.cpp. Successful checks are cached.

    Raises `UsageError` if its logits differ from those of llama.cpp.
    """
    try:
        build = version(LLAMA_PACKAGE)
    except PackageNotFoundError:
        return load()
    checked = [file.digest.hex(), build, *(version(package) for package in ("torch", "transformers"))]
    name = hashlib.sha256(json.dumps(checked).encode()).hexdigest()
    mark = (cache_folder or Path(user_cache_dir("cosine-p2p")) / "gguf-trials") / name
    size_bytes = sum(part.stat().st_size for part in file.parts)
    free_bytes = free_memory_bytes()
    is_large = free_bytes is not None and size_bytes > MOST_MEMORY * free_bytes
    if mark.exists() or is_large:
        return load()
    model = tried(file, load, llama_logits)
    try:
        replace_text(mark, "")
    except OSError as error:
        LOG.warning("%s: %s will be checked again", error, file.path)
    return model


def tried(file: GgufFile, load: Callable[[], Any], asked: LlamaLogits) -> Any:
    """Load a model, and compare it with llama.cpp if that gives logits. Raises `UsageError` if they differ."""
    tokens = [(5 + 7919 * place) % file.vocab_tokens for place in range(TOKENS)]
    step = -(-file.vocab_tokens // MOST_COMPARED)
    try:
        # Before the weights are loaded, since llama.cpp needs memory too.
        expected = torch.tensor(asked(file.parts[0], tokens, step))
    except UsageError as error:
        LOG.info("%s was not compared with llama.cpp: %s", file.path, error)
        return load()
    model = load()
    with torch.inference_mode():
        ids = torch.tensor([tokens], device=model.device)
        found = model(input_ids=ids, use_cache=False).logits[0, :, ::step].float().cpu()
    apart = error_of(found, expected)
    allowed = MOST_ERROR if file.weights in EXACT else MOST_ROUNDED_ERROR
    # Written so that NaN fails.
    if not apart <= allowed:
        raise UsageError(
            f"{file.path} cannot be run from GGUF in PyTorch: its logits differ from llama.cpp's by {apart:.2g} "
            "standard deviations; use the model's own folder, or --engine llama."
        )
    return model


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the error of logits [tokens, some] at the median token, in standard deviations of the expected ones.

    The error of a token is a root mean square without the mean, since a constant changes no probability.
    """
    error = found - expected
    errors = error.std(dim=1) / expected.std(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return float(errors.median())


def llama_logits(file: Path, tokens: Sequence[int], step: int) -> Logits:
    """Compute logits with the installed llama.cpp in another process."""
    logits: Logits = ask_llama("logits", file, list(tokens), step, timeout_s=LLAMA_TIMEOUT_S)
    return logits
