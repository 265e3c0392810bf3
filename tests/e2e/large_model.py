"""A GGUF file of random weights in a real model's shape, written tensor by tensor: memory never holds more.

`python -m tests.e2e.large_model OUT` writes one of 12.6 GB, and with fewer layers (`OUT 4`) a smaller one.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from cosine_node.zoo.family import SMOL_TARGET
from tests.node.engine.gguf_architectures import add_metadata

SEED: Final = 7
BLOCK_WEIGHTS: Final = 256
BLOCK_BYTES: Final = 144
"""Of Q4_K, in which all matrices are."""
SCALE: Final = 2.0**-13
"""Of all blocks: weights are about 0.02 then, as before training, and the numbers of a pass stay small."""
ZERO: Final = 7.5 * SCALE
"""The same for what is taken off: of fifteen steps the middle is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model of the llama kind, but for its vocabulary."""

    layers: int
    width: int
    inner_width: int
    heads: int
    kv_heads: int
    head_size: int
    context_tokens: int
    rope_base: float

    def matrices(self, vocab_tokens: int) -> Iterator[tuple[str, int, int]]:
        """The name, the rows and the columns of each, in their order in the file."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "token_embd.weight", vocab_tokens, self.width
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q.weight", queries, self.width
            yield f"blk.{layer}.attn_k.weight", keys, self.width
            yield f"blk.{layer}.attn_v.weight", keys, self.width
            yield f"blk.{layer}.attn_output.weight", self.width, queries
            yield f"blk.{layer}.ffn_gate.weight", self.inner_width, self.width
            yield f"blk.{layer}.ffn_up.weight", self.inner_width, self.width
            yield f"blk.{layer}.ffn_down.weight", self.width, self.inner_width
        yield "output.weight", vocab_tokens, self.width

    def norms(self) -> Iterator[str]:
        """The names of the vectors."""
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"
        yield "output_norm.weight"


MISTRAL_SMALL: Final = Shape(
    layers=56,
    width=6144,
    inner_width=16_384,
    heads=48,
    kv_heads=8,
    head_size=128,
    context_tokens=32_768,
    rope_base=1e6,
)
"""That of Mistral Small (mistralai/Mistral-Small-Instruct-2409), 22 billion weights."""


def write_large_model(out: Path, shape: Shape, *, vocabulary: Path, seed: int = SEED) -> None:
    """Write a model with the tokenizer of another file; never more than a tensor of it is in memory."""
    draw = np.random.Generator(np.random.PCG64(seed))
    known = GgufFile.open(vocabulary)
    writer = GGUFWriter(str(out), "llama")
    writer.add_name("random")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_S)
    writer.add_vocab_size(known.vocab_tokens)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    add_metadata(writer, {key: value for key, value in known.metadata.items() if key.startswith("tokenizer.")})
    matrices = list(shape.matrices(known.vocab_tokens))
    norms = list(shape.norms())
    for name, rows, columns in matrices:
        row_bytes = columns // BLOCK_WEIGHTS * BLOCK_BYTES
        kind = GGMLQuantizationType.Q4_K
        writer.add_tensor_info(name, (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, raw_dtype=kind)
    ones = np.ones(shape.width, dtype=np.float32)
    for name in norms:
        writer.add_tensor_info(name, ones.shape, ones.dtype, ones.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, columns in matrices:
        writer.write_tensor_data(random_blocks(draw, rows * columns // BLOCK_WEIGHTS))
    for _ in norms:
        writer.write_tensor_data(ones)
    writer.close()


def random_blocks(draw: np.random.Generator, blocks: int) -> npt.NDArray[np.uint8]:
    """Blocks of Q4_K [blocks, bytes of a block] whose weights are about nothing in the mean."""
    found = np.frombuffer(bytearray(draw.bytes(blocks * BLOCK_BYTES)), dtype=np.uint8).reshape(blocks, BLOCK_BYTES)
    found[:, :4] = np.array([SCALE, ZERO], dtype="<f2").view(np.uint8)
    # What is taken off has the scale of what it is taken off from: that lies in other bytes and the upper halves.
    found[:, 8:12] = found[:, 4:8]
    found[:, 12:16] = (found[:, 12:16] & 15) * 17
    return found


def main(out: str, layers: str = str(MISTRAL_SMALL.layers)) -> None:
    """Write a model with the vocabulary of SmolLM2."""
    vocabulary = zoo.location(SMOL_TARGET)
    write_large_model(Path(out), replace(MISTRAL_SMALL, layers=int(layers)), vocabulary=vocabulary)


if __name__ == "__main__":
    main(*sys.argv[1:])
