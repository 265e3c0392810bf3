"""Tiny models as folders and GGUF files, written once a run."""

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from tests.node.engine.tiny_models import tiny_llama

_FOLDER = tempfile.TemporaryDirectory(prefix="cosine-gguf-")


def gguf_of(model: Any, name: str, *, weights: str = "F32") -> Path:
    """A model of transformers, of the llama kind, as a file of that name."""
    folder = Path(_FOLDER.name) / f"{name}-source"
    model.save_pretrained(folder)
    file = Path(_FOLDER.name) / f"{name}.{weights}.gguf"
    write_gguf(folder, file, weights=weights)
    return file


@lru_cache
def tiny_gguf(weights: str = "F32") -> Path:
    """`tiny_llama` as a file."""
    return gguf_of(tiny_llama(), "tiny", weights=weights)


@lru_cache
def unfolded_gguf(weights: str) -> Path:
    """The folder that such a file is unfolded to."""
    return unfold(tiny_gguf(weights), cache_folder=Path(_FOLDER.name))


def changed_gguf(
    file: Path,
    target: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """A copy of a file with other numbers and texts under some keys, and more tensors."""
    reader, writer = GGUFReader(str(file)), GGUFWriter(str(target), "llama")
    old = {name: field for name, field in reader.fields.items() if not name.startswith(("GGUF.", "general.arch"))}
    for name, field in old.items():
        if name not in metadata:
            kind = field.types[0]
            items = field.types[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=items)
    kinds = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    for name, value in metadata.items():
        writer.add_key_value(name, value, kinds[type(value)])
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name, np.array(tensor.data), raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type
        )
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def gguf_with_tower(target: Path) -> Path:
    """`tiny_llama` with a tower for images in the same file."""
    names = ("v.blk.0.attn_q.weight", "v.patch_embd.weight", "mm.0.weight")
    return changed_gguf(tiny_gguf(), target, {}, {name: np.ones((4, 4), dtype=np.float32) for name in names})


def tiny_folder() -> Path:
    """`tiny_llama` as a folder."""
    return tiny_gguf().with_name("tiny-source")
