"""Tiny models as folders and GGUF files, written once per run."""

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from tests.engine.gguf_architectures import TINY
from tests.engine.tiny_models import tiny_llama

_FOLDER = tempfile.TemporaryDirectory(prefix="cosine-gguf-")


def gguf_of(model: Any, name: str, *, weights: str = "F32") -> Path:
    """Write a model of transformers, of the llama kind, as a file of that name."""
    folder = Path(_FOLDER.name) / f"{name}-source"
    model.save_pretrained(folder)
    file = Path(_FOLDER.name) / f"{name}.{weights}.gguf"
    write_gguf(folder, file, weights=weights)
    return file


@lru_cache
def tiny_gguf(weights: str = "F32") -> Path:
    """Return `tiny_llama` as a file."""
    return gguf_of(tiny_llama(), "tiny", weights=weights)


@lru_cache
def unfolded_gguf(weights: str) -> Path:
    return unfold(tiny_gguf(weights), cache_folder=Path(_FOLDER.name))


def gguf_with_tower(target: Path) -> Path:
    """Write `TINY["llama"]` with a tower for images in the same file."""
    names = ("v.blk.0.attn_q.weight", "v.patch_embd.weight", "mm.0.weight")
    llama = TINY["llama"]
    return replace(llama, once={**llama.once, **dict.fromkeys(names, (4, 4))}).write(target)


def tiny_folder() -> Path:
    """Return `tiny_llama` as a folder."""
    return tiny_gguf().with_name("tiny-source")
