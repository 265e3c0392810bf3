"""Engines of the embedded models, by their numerics."""

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from cosine_engine import zoo
from cosine_engine.base import Engine
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from tests.engine.loaded import llama_file_engine, torch_engine

POOL_TOKENS: Final = 16_384
_FILES: Final = tempfile.TemporaryDirectory(prefix="cosine-audits-")


def engine_of(numerics: str, *, model: str = "target", threads: int = 1) -> Engine:
    """Return an engine for an embedded model with numerics such as `float32/int8` or `gguf:Q4_1+llama.cpp`."""
    weights, _, computed = numerics.removeprefix("gguf:").rpartition("+")
    if computed == "llama.cpp":
        return llama_file_engine(gguf_of(model, weights), threads=threads, pool_tokens=POOL_TOKENS)
    dtype, _, quantize = computed.partition("/")
    folder = unfold(gguf_of(model, weights), cache_folder=Path(_FILES.name)) if weights else zoo.location(model)
    return torch_engine(folder, dtype=dtype, quantize=quantize or None, pool_tokens=POOL_TOKENS)


@lru_cache
def gguf_of(model: str, weights: str) -> Path:
    """Return an embedded model as a GGUF file; SmolLM2 is one."""
    source = zoo.location(model)
    if source.is_file():
        return source
    file = Path(_FILES.name) / f"{model}.{weights}.gguf"
    write_gguf(source, file, weights=weights)
    return file
