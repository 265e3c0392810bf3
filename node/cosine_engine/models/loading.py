"""Finds the files of a model by its name, and loads the engine of a model with the library of its options.

Imports libraries lazily.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cosine_engine import zoo
from cosine_engine.base import Engine
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.llama import library as llama_library
from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.models.engine_kind import kind_for
from cosine_engine.models.hub import HubModel
from cosine_engine.models.model_sizes import DraftedTokens
from cosine_engine.models.tokenizer_conversion import convert_tokenizer
from cosine_p2p.gguf.header import is_gguf
from cosine_protocol.errors import UsageError
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)


def open_model(name: str, emit: Emit = lambda event, fields: None) -> ModelFiles:
    """Return the files of a model, which is downloaded from the Hugging Face hub if necessary.

    A GGUF file is unfolded, and a tokenizer that clients cannot read is converted. Raises `UsageError`.
    """
    place = zoo.resolve(name)
    if isinstance(place, Path):
        return open_place(place)
    emit("fetching", {"model": name})
    return open_place(HubModel.parse(place).fetch())


def open_place(place: Path) -> ModelFiles:
    """Like `open_model`, for a folder or a GGUF file."""
    if place.is_file():
        return ModelFiles.in_folder(unfold(place, is_served=True))
    convert_tokenizer(place)
    return ModelFiles.in_folder(place)


def load(files: ModelFiles, how: LoadOptions, *, target: ModelFiles | None = None) -> Engine:
    """Load the engine of a model; that of a drafter chooses the tokens of its `target`. Raises `UsageError`."""
    if target is not None and target.folder != files.folder:
        how = replace(how, known=DraftedTokens.of(files.folder, target.folder).known)
    file = files.gguf
    kind = kind_for(how, files.folder if file is None or not file.parts else file.path)
    if kind is EngineKind.VLLM:
        from cosine_engine.vllm.loading import load_vllm

        return load_vllm(files, how)
    if kind is EngineKind.TORCH:
        from cosine_engine.torch.loading import load_engine
        from cosine_engine.torch.threads import limit_threads

        try:
            limit_threads(how.threads, files)
            return load_engine(files, how)
        except UsageError as error:
            is_free = how.kind is EngineKind.AUTO and not how.needs_torch and not how.feature_layers
            if file is None or not is_free or not llama_library.is_installed():
                raise
            LOG.warning("llama.cpp runs this file, since PyTorch cannot: %s", error)
    if file is None:
        raise UsageError(f"--engine llama runs GGUF files, and {files.folder.name!r} is none.")
    from cosine_engine.llama.loading import load_llama

    return load_llama(file, how)


def check_options(how: LoadOptions, place: Path | str) -> None:
    """Raise `UsageError` for options that exclude a model or this machine, before the model is fetched."""
    kind = kind_for(how, place)
    if kind is not EngineKind.VLLM and how.vllm.processes != 1:
        raise UsageError("--tensor-parallel and --pipeline-parallel are for --engine vllm.")
    if kind is EngineKind.TORCH:
        from cosine_engine.torch import loading

        loading.check_options(how)
        return
    only_torch = {
        "a draft head reads layers of the target: it needs --engine torch": bool(how.feature_layers),
        f"--deterministic is for --engine torch: {'vLLM' if kind is EngineKind.VLLM else 'llama.cpp'}'s results "
        "depend on the batch": how.is_deterministic,
    }
    if kind is EngineKind.VLLM:
        from cosine_engine.vllm.environment import find_python

        _refuse(
            {
                "--engine vllm runs Hugging Face folders, no GGUF files": is_gguf(Path(place)),
                "--device is for other engines: vLLM computes where its build does": how.device != "auto",
                "--quantize is for --engine torch: vLLM runs folders with quantised weights": how.quantize
                is not None,
                **only_torch,
            }
        )
        find_python(how.vllm)
        return
    from cosine_engine.llama.loading import find_device

    _refuse(
        {
            f"--engine llama runs GGUF files, and {Path(place).name!r} is none": not is_gguf(Path(place)),
            "--dtype is for --engine torch: llama.cpp uses the types in the file": how.dtype != "auto",
            "--quantize is for --engine torch: choose a GGUF file with fewer bits": how.quantize is not None,
            **only_torch,
        }
    )
    find_device(llama_library.llama_library(), how.device)


def _refuse(reasons: Mapping[str, bool]) -> None:
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{reason}.")
