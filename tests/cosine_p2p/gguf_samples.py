"""A small GGUF file, written by the package `gguf`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize

SIZES: dict[str, int] = {
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}
EMBEDDING = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)


def write_sample(
    file: Path,
    metadata: Mapping[str, Any] | None = None,
    *,
    weights: str = "Q8_0",
    vector: str = "output_norm.weight",
    has_weights: bool = True,
    part_tensors: int = 0,
) -> Path:
    """Write a file with one matrix and one vector, or neither; metadata of None are omitted.

    With `part_tensors`, write a file for each `part_tensors` tensors and return the first.
    """
    architecture = (metadata or {}).get("general.architecture", "llama")
    writer = GGUFWriter(str(file), architecture, split_max_tensors=part_tensors)
    for key, value in {**SIZES, **(metadata or {})}.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str) and key != "general.architecture":
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
    kind = GGMLQuantizationType[weights]
    assert EMBEDDING.shape[1] % GGML_QUANT_SIZES[kind][0] == 0
    if has_weights:
        writer.add_tensor("token_embd.weight", quantize(EMBEDDING, kind), raw_dtype=kind)
        writer.add_tensor(vector, np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.with_name(f"{file.stem}-00001-of-00002{file.suffix}") if part_tensors else file
