"""The libraries that run models, and loading an engine with one of them. Imports both lazily."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cosine_engine.base import Engine
from cosine_engine.llama import library as llama_library
from cosine_engine.openai import SCHEME
from cosine_engine.pool_size import PoolSize, free_memory_bytes
from cosine_engine.processor import has_card, reads_float16
from cosine_engine.vllm.environment import VllmOptions
from cosine_engine.vocabulary import ALL_TOKENS, KnownTokens
from cosine_p2p.gguf.header import is_gguf
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import DETERMINISTIC, DTYPES, LLAMA, VLLM, arithmetic_of, held_type_of

LOG = logging.getLogger(__name__)

NGRAM: Final = "ngram"
"""The model of a drafter without weights, which looks up n-grams of the text."""
TORCH_MEMORY_SHARE: Final = 0.5
"""Maximum share of the free memory for the weights of a GGUF file in PyTorch."""


def has_files(model: str) -> bool:
    """True for a model that the node loads."""
    return model != NGRAM and not model.startswith(SCHEME)


class EngineKind(StrEnum):
    """The value of `--engine`.

    AUTO is llama.cpp, if installed, for a GGUF file that PyTorch cannot hold in float16 on the CPU: with a GPU,
    without AVX2, with too little memory, or for a mixture of experts or an unknown model. Else it is PyTorch.
    """

    AUTO = "auto"
    TORCH = "torch"
    LLAMA = "llama"
    VLLM = "vllm"


QUANTISATIONS: Final = ("float16", "int8", "int4")
"""The values of `--quantize` that numerics name."""


def join_options(numerics: str) -> tuple[str, ...]:
    """The options of `cosine-node join` for these numerics. Empty for unknown ones."""
    arithmetic, held = arithmetic_of(numerics), held_type_of(numerics)
    if arithmetic == LLAMA:
        return ("--engine", EngineKind.LLAMA)
    if arithmetic not in DTYPES:
        return ()
    if numerics.startswith(VLLM):
        return ("--engine", EngineKind.VLLM, "--dtype", arithmetic)
    quantised = ("--quantize", held) if held in QUANTISATIONS else ()
    # With converted weights, it is the default where it is possible.
    is_asked = numerics.endswith(DETERMINISTIC) and not (quantised and arithmetic == "float32")
    deterministic = ("--deterministic",) if is_asked else ()
    return ("--engine", EngineKind.TORCH, "--dtype", arithmetic, *quantised, *deterministic)


def parse_engine(text: str) -> EngineKind:
    """Return the value of `--engine`. Raises `UsageError`."""
    if text not in set(EngineKind):
        raise UsageError(f"--engine must be auto, torch, llama or vllm, not {text!r}.")
    return EngineKind(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Options for loading a model. A draft head reads the inputs of a target's `feature_layers`."""

    kind: EngineKind = EngineKind.AUTO
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    threads: int | None = None
    pool_size: PoolSize = field(default_factory=PoolSize)
    is_deterministic: bool = False
    feature_layers: tuple[int, ...] = ()
    vllm: VllmOptions = field(default_factory=VllmOptions)

    @property
    def needs_torch(self) -> bool:
        return self.dtype != "auto" or self.quantize is not None or self.is_deterministic

    def kind_for(self, resolved: Path | str) -> EngineKind:
        """The library for a result of `zoo.resolve`. PyTorch counts as able to hold a missing file."""
        if self.kind is not EngineKind.AUTO:
            return self.kind
        if self.needs_torch or not is_gguf(Path(resolved)) or not llama_library.is_installed():
            return EngineKind.TORCH
        on_cpu = reads_float16() and (self.device == "cpu" or (self.device == "auto" and not has_card()))
        is_held = (
            on_cpu and find_spec("torch") is not None and (isinstance(resolved, str) or fits_float16(resolved))
        )
        return EngineKind.TORCH if is_held else EngineKind.LLAMA


def fits_float16(path: Path) -> bool:
    """True if PyTorch can run a GGUF file in float16 within the free memory. Reads only its header."""
    # Imported here to keep `--help` fast.
    from cosine_engine.gguf.file import GgufFile
    from cosine_engine.gguf.transformers_model import transformers_config

    try:
        file = GgufFile.open(path)
        config = transformers_config(file)
    except UsageError:
        return False
    # Experts stay in float32, and so does the embedding.
    is_mixture = bool(file.metadata.get(f"{file.architecture}.expert_count"))
    size_bytes = 2 * file.parameters + 4 * file.vocab_tokens * config["hidden_size"]
    free_bytes = free_memory_bytes()
    has_room = free_bytes is None or size_bytes <= TORCH_MEMORY_SHARE * free_bytes
    return has_room and not file.is_wide and not is_mixture


def check_engine_options(options: EngineChoice, resolved: Path | str) -> None:
    """Raise `UsageError` for options that exclude a model or this machine, before the model is fetched."""
    kind = options.kind_for(resolved)
    if kind is EngineKind.VLLM:
        _check_vllm(options, resolved)
        return
    if options.vllm.processes != 1:
        raise UsageError("--tensor-parallel and --pipeline-parallel are for --engine vllm.")
    if kind is EngineKind.TORCH:
        from cosine_engine.torch.loading import check_options

        check_options(dtype=options.dtype, device=options.device, quantize=options.quantize)
        return
    name = Path(resolved).name
    reasons = {
        f"--engine llama runs GGUF files, and {name!r} is none": not is_gguf(Path(resolved)),
        "--dtype is for --engine torch: llama.cpp uses the types in the file": options.dtype != "auto",
        "--quantize is for --engine torch: choose a GGUF file with fewer bits": options.quantize is not None,
        "a draft head reads layers of the target: it needs --engine torch": bool(options.feature_layers),
        "--deterministic is for --engine torch: llama.cpp's results depend on the batch": options.is_deterministic,
    }
    _refuse(reasons)
    from cosine_engine.llama.loading import find_device

    find_device(llama_library.llama_library(), options.device)


def _check_vllm(options: EngineChoice, resolved: Path | str) -> None:
    _refuse(
        {
            "--engine vllm runs Hugging Face folders, no GGUF files": is_gguf(Path(resolved)),
            "--device is for other engines: vLLM computes where its build does": options.device != "auto",
            "--quantize is for --engine torch: vLLM runs folders with quantised weights": options.quantize
            is not None,
            "a draft head reads layers of the target: it needs --engine torch": bool(options.feature_layers),
            "--deterministic is for --engine torch: vLLM's results depend on the batch": options.is_deterministic,
        }
    )
    options.vllm.find()


def _refuse(reasons: Mapping[str, bool]) -> None:
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{reason}.")


def load_with(
    options: EngineChoice,
    folder: Path,
    resolved: Path | str,
    *,
    known: KnownTokens = ALL_TOKENS,
) -> Engine:
    """Load the model in a folder, which was fetched from `resolved`. Raises `UsageError`."""
    from cosine_engine.gguf.file import GgufFile

    file = GgufFile.in_folder(folder)
    # A file that was not downloaded before can be read now.
    kind = options.kind_for(resolved if file is None or not file.parts else file.path)
    if kind is EngineKind.VLLM:
        from cosine_engine.vllm.loading import load_vllm

        return load_vllm(
            folder,
            options.vllm,
            dtype=options.dtype,
            threads=options.threads,
            pool_tokens=options.pool_size,
            known=known,
        )
    if kind is EngineKind.TORCH:
        from cosine_engine.torch.loading import load_engine
        from cosine_engine.torch.threads import limit_threads

        try:
            limit_threads(options.threads, folder)
            return load_engine(
                str(folder),
                dtype=options.dtype,
                device=options.device,
                quantize=options.quantize,
                pool_tokens=options.pool_size,
                is_deterministic=options.is_deterministic,
                known=known,
                feature_layers=options.feature_layers,
                is_served=True,
            )
        except UsageError as error:
            is_free = options.kind is EngineKind.AUTO and not options.needs_torch and not options.feature_layers
            if file is None or not is_free or not llama_library.is_installed():
                raise
            LOG.warning("llama.cpp runs this file, since PyTorch cannot: %s", error)
    if file is None:
        raise UsageError(f"--engine llama runs GGUF files, and {Path(resolved).name!r} is none.")
    from cosine_engine.llama.loading import load_llama

    return load_llama(
        file.path,
        device=options.device,
        threads=options.threads,
        pool_tokens=options.pool_size,
        known=known,
    )
