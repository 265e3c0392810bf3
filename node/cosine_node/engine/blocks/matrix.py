"""A matrix in ggml's blocks, which is multiplied by and looked up in without ever being numbers as a whole."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from cosine_node.engine.blocks.kinds import KINDS, dequantise
from cosine_p2p.gguf.header import BLOCKS

SIZES: Final = {name: (weights, size_bytes) for name, weights, size_bytes in BLOCKS.values() if name in KINDS}
"""Weights and bytes of a block of each kind."""
TILE_WEIGHTS: Final = 1 << 19
"""Of a tile: two megabytes in float32, about the second cache of a CPU. Each of some ninety steps is a call: in
tiles of a quarter passes of Q4_K took twice as long, of half 1.1 to 1.6 times; twice as large ones are as fast."""
CPU_WEIGHTS: Final = TILE_WEIGHTS
"""So many are numbers at a time."""
CARD_WEIGHTS: Final = 1 << 24
"""The same on a card, where each step costs a launch: 64 MiB in float32."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a matrix [rows, columns] lies: in tiles of some rows, each with its blocks turned, as `kinds` takes them.

    The last tile is filled up with rows of nothing, fewer than there are tiles. Each of so many `experts` has such
    a matrix.
    """

    kind: str
    rows: int
    columns: int
    tile_weights: int = TILE_WEIGHTS
    """At most so many more than a row are in a tile."""
    experts: int | None = None

    @property
    def block_weights(self) -> int:
        return SIZES[self.kind][0]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[tiles, bytes of a block, blocks of a row, rows of a tile]."""
        tile_rows = -(-self.rows // -(-self.rows * self.columns // self.tile_weights))
        # Of many short rows the last tiles may be empty, and are left out.
        return -(-self.rows // tile_rows), SIZES[self.kind][1], self.columns // self.block_weights, tile_rows

    @property
    def size_bytes(self) -> int:
        tiles, block_bytes, blocks, rows = self.shape
        return tiles * block_bytes * blocks * rows * (self.experts or 1)

    def laid(self, rows: Tensor) -> Tensor:
        """The bytes of rows as a file has them, [rows, bytes of a row], in `shape`.

        Those of experts are [experts, rows, bytes of a row], and come out as one such shape after the other.
        """
        _, block_bytes, blocks, tile_rows = self.shape
        matrices = rows.view(-1, self.rows, rows.shape[-1])
        laid = torch.zeros((len(matrices), *self.shape), dtype=torch.uint8)
        for matrix, own in zip(laid, matrices, strict=True):
            for tile, part in zip(matrix, torch.split(own, tile_rows), strict=True):
                tile[..., : len(part)] = part.view(-1, blocks, block_bytes).permute(2, 1, 0)
        return laid[0] if self.experts is None else laid

    def times(self, planes: Tensor, vectors: Tensor) -> Tensor:
        """Vectors [..., columns] to their products with all rows of one matrix, whose bytes lie so.

        They are [..., rows], in the dtype of the vectors.
        """
        _, _, blocks, tile_rows = self.shape
        # In a tile the first weights of all blocks of a row come before the second ones.
        turned = vectors.reshape(-1, blocks, self.block_weights).transpose(1, 2).reshape(-1, self.columns)
        most_weights = CPU_WEIGHTS if planes.device.type == "cpu" else CARD_WEIGHTS
        at_once = max(1, most_weights // (tile_rows * self.columns))
        found = []
        for part in torch.split(planes, at_once):
            weights = dequantise(self.kind, part.transpose(0, 1).flatten(1))
            matrices = weights.view(self.block_weights, len(part), blocks, tile_rows).transpose(0, 1)
            matrices = matrices.reshape(len(part), self.columns, tile_rows).to(vectors.dtype)
            found += [turned @ matrix for matrix in matrices]
        whole = torch.cat(found, 1) if len(found) > 1 else found[0]
        return whole[:, : self.rows].reshape(*vectors.shape[:-1], self.rows)


class BlockMatrix(nn.Module):
    """Bytes of a matrix [rows, columns], or of one for each expert, as `BlockLayout` has them."""

    planes: Tensor

    def __init__(self, layout: BlockLayout) -> None:
        super().__init__()
        self.layout = layout
        shape = layout.shape if layout.experts is None else (layout.experts, *layout.shape)
        self.register_buffer("planes", torch.empty(shape, dtype=torch.uint8))

    def times(self, vectors: Tensor) -> Tensor:
        """As `BlockLayout.times`."""
        return self.layout.times(self.planes, vectors)

    def times_expert(self, expert: int, vectors: Tensor) -> Tensor:
        """As `BlockLayout.times`, with the matrix of an expert."""
        return self.layout.times(self.planes[expert], vectors)

    def rows_of(self, numbers: Tensor) -> Tensor:
        """The rows of these numbers [...] in float32, [..., columns]."""
        layout = self.layout
        _, block_bytes, blocks, tile_rows = layout.shape
        asked = numbers.flatten()
        rows = self.planes[asked // tile_rows, :, :, asked % tile_rows]
        weights = dequantise(layout.kind, rows.transpose(0, 1).reshape(block_bytes, -1))
        turned = weights.view(layout.block_weights, len(asked), blocks).permute(1, 2, 0)
        return turned.reshape(*numbers.shape, layout.columns)


class BlockLinear(nn.Module):
    """Stands for a linear layer whose weights are in blocks."""

    _like: Tensor

    def __init__(self, matrix: BlockMatrix, bias: nn.Parameter | None, *, is_shared: bool = False) -> None:
        """A matrix that `is_shared` belongs to another module, which stores it."""
        super().__init__()
        self.in_features, self.out_features = matrix.layout.columns, matrix.layout.rows
        self.bias = bias
        if not is_shared:
            self.matrix = matrix
        # Not as a module of this one, which would be stored twice.
        self._matrix = (matrix,)
        # Has the dtype and the device of the model.
        self.register_buffer("_like", torch.empty(0), persistent=False)

    @property
    def weight(self) -> Tensor:
        """Rows of nothing, in the dtype of the model: some ask for that."""
        return self._like.expand(self.out_features, 0)

    def numbers(self) -> Tensor:
        """The weights [outputs, inputs] in float32."""
        matrix = self._matrix[0]
        return matrix.rows_of(torch.arange(self.out_features, device=matrix.planes.device))

    def forward(self, vectors: Tensor) -> Tensor:
        found = self._matrix[0].times(vectors)
        return found if self.bias is None else found + self.bias


class BlockEmbedding(nn.Embedding):
    """Stands for an embedding whose rows are in blocks; `stand_in` makes one of an embedding, of whatever kind."""

    matrix: BlockMatrix
    _like: Tensor

    @staticmethod
    def stand_in(embedding: nn.Embedding, matrix: BlockMatrix) -> None:
        """Let an embedding have its rows in a matrix; what its kind does with them, as scaling, stays."""
        kind = type(embedding)
        del embedding.weight
        # Before those of `nn.Embedding`, after those of its kind.
        bases = (BlockEmbedding,) if kind is nn.Embedding else (kind, BlockEmbedding)
        embedding.__class__ = type(kind.__name__, bases, {"__module__": kind.__module__})
        embedding.matrix = matrix
        # Has the dtype and the device of the model.
        embedding.register_buffer("_like", torch.empty(0), persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # there it is a parameter
        """Rows of nothing, in the dtype of the model: some kinds ask for that."""
        return self._like.expand(self.num_embeddings, 0)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.matrix.rows_of(numbers).to(self._like.dtype)
