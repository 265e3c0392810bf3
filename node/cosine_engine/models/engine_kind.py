"""The library that runs a model. Imports none, nor numpy: the command line of the light client chooses too."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cosine_engine.llama import library as llama_library
from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.openai import SCHEME
from cosine_engine.pool_size import free_memory_bytes
from cosine_engine.processor import has_card, reads_float16
from cosine_p2p.gguf.header import is_gguf
from cosine_protocol.errors import UsageError

NGRAM: Final = "ngram"
"""The model of a drafter without weights, which looks up n-grams of the text."""
TORCH_MEMORY_SHARE: Final = 0.5
"""Maximum share of the free memory for the weights of a GGUF file in PyTorch."""


def has_files(model: str) -> bool:
    """True for a model that the node loads."""
    return model != NGRAM and not model.startswith(SCHEME)


def kind_for(how: LoadOptions, place: Path | str) -> EngineKind:
    """The library for a result of `zoo.resolve`. PyTorch counts as able to hold a missing file."""
    if how.kind is not EngineKind.AUTO:
        return how.kind
    if how.needs_torch or not is_gguf(Path(place)) or not llama_library.is_installed():
        return EngineKind.TORCH
    on_cpu = reads_float16() and (how.device == "cpu" or (how.device == "auto" and not has_card()))
    is_held = on_cpu and find_spec("torch") is not None and (isinstance(place, str) or fits_float16(place))
    return EngineKind.TORCH if is_held else EngineKind.LLAMA


def fits_float16(path: Path) -> bool:
    """True if PyTorch can run a GGUF file in float16 within the free memory. Reads only its header."""
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
