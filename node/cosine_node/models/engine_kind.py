"""The libraries that can run a model, and loading an engine with one of them. Imports neither at first."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cosine_node.engine.base import Engine
from cosine_node.engine.llama import library as llama_library
from cosine_node.engine.pool_size import PoolSize
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_p2p.gguf.header import is_gguf
from cosine_protocol.errors import UsageError


class EngineKind(StrEnum):
    """The value of `--engine`. AUTO is llama.cpp for GGUF files where it is installed, else PyTorch."""

    AUTO = "auto"
    TORCH = "torch"
    LLAMA = "llama"


def parse_engine(text: str) -> EngineKind:
    """Return the value of `--engine`. Raises `UsageError`."""
    if text not in set(EngineKind):
        raise UsageError(f"--engine must be auto, torch or llama, not {text!r}.")
    return EngineKind(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The way in which a model is to be loaded, as `join` is told it."""

    kind: EngineKind = EngineKind.AUTO
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    threads: int | None = None
    pool_size: PoolSize = field(default_factory=PoolSize)
    is_deterministic: bool = False
    feature_layers: tuple[int, ...] = ()
    """Layers of a target whose inputs a draft head beside it reads."""

    def kind_for(self, resolved: Path | str) -> EngineKind:
        """The library for a model that `zoo.resolve` has found, or will find under that name."""
        if self.kind is not EngineKind.AUTO:
            return self.kind
        # Who asks for what only PyTorch can do is given it.
        is_for_torch = self.dtype != "auto" or self.quantize is not None or self.is_deterministic
        is_for_llama = is_gguf(Path(resolved)) and llama_library.is_installed()
        return EngineKind.LLAMA if is_for_llama and not is_for_torch else EngineKind.TORCH


def check_engine_options(options: EngineChoice, resolved: Path | str) -> None:
    """Raise `UsageError` for options that suit no model of that name on this machine, before it is fetched."""
    if options.kind_for(resolved) is EngineKind.TORCH:
        from cosine_node.engine.torch.loading import check_options

        check_options(dtype=options.dtype, device=options.device, quantize=options.quantize)
        return
    name = Path(resolved).name
    reasons = {
        f"--engine llama runs GGUF files, and {name!r} is none": not is_gguf(Path(resolved)),
        "--dtype is for --engine torch: llama.cpp computes with the weights as the file has them": options.dtype
        != "auto",
        "--quantize is for --engine torch: choose a GGUF file with fewer bits instead": options.quantize
        is not None,
        "a draft head reads between a target's layers: it needs --engine torch": bool(options.feature_layers),
        "--deterministic is for --engine torch: with llama.cpp results may depend on what else is "
        "computed": options.is_deterministic,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{reason}.")
    from cosine_node.engine.llama.loading import find_device

    find_device(llama_library.llama_library(), options.device)


def load_with(
    options: EngineChoice,
    folder: Path,
    resolved: Path | str,
    vocabulary: DraftVocabulary | None = None,
    *,
    known_tokens: int | None = None,
) -> Engine:
    """An engine around the model in a folder, fetched from what was resolved.

    `vocabulary` is a drafter's own, and `known_tokens` bounds the ids that it drafts.

    Raises `UsageError`.
    """
    if options.kind_for(resolved) is EngineKind.LLAMA:
        from cosine_node.engine.llama.loading import load_llama
        from cosine_node.gguf.file import GgufFile

        file = GgufFile.in_folder(folder)
        if file is None:
            raise UsageError(f"--engine llama runs GGUF files, and {Path(resolved).name!r} is none.")
        return load_llama(
            file.path,
            device=options.device,
            threads=options.threads,
            pool_tokens=options.pool_size,
            vocabulary=vocabulary,
            known_tokens=known_tokens,
        )
    from cosine_node.engine.torch.loading import load_engine
    from cosine_node.engine.torch.threads import limit_threads

    limit_threads(options.threads, folder)
    return load_engine(
        str(folder),
        dtype=options.dtype,
        device=options.device,
        quantize=options.quantize,
        pool_tokens=options.pool_size,
        is_deterministic=options.is_deterministic,
        vocabulary=vocabulary,
        known_tokens=known_tokens,
        feature_layers=options.feature_layers,
        is_served=True,
    )
