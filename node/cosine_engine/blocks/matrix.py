"""A matrix in ggml's blocks, for products and look-ups that never dequantise it as a whole."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from cosine_engine.blocks.kinds import KINDS, Planes, dequantise
from cosine_p2p.gguf.header import BLOCKS

SIZES: Final = {name: (weights, size_bytes) for name, weights, size_bytes in BLOCKS.values() if name in KINDS}
"""Weights and bytes of a block of each format."""
TILE_WEIGHTS: Final = 1 << 19
"""Number of weights of a tile: two megabytes in float32, about the L2 cache of a CPU. A product has about ninety
operations per tile: with tiles of a quarter of this size, passes of Q4_K took twice as long, with half of it 1.1 to
1.6 times; tiles of twice the size are as fast."""
CARD_WEIGHTS: Final = 1 << 24
"""Number of weights that are dequantised at once on a GPU, where each operation costs a launch: 64 MiB in float32.
On a CPU, it is `TILE_WEIGHTS`."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The memory layout of a matrix [rows, columns]: tiles of some rows with transposed blocks (`kinds`).

    The last tile is padded with fewer zero rows than there are tiles. With `experts`, there is one such matrix for
    each of them.
    """

    kind: str
    rows: int
    columns: int
    tile_weights: int = TILE_WEIGHTS
    """Maximum number of weights of a tile beyond its first row."""
    experts: int | None = None

    @property
    def block_weights(self) -> int:
        return SIZES[self.kind][0]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[tiles, bytes of a block, blocks of a row, rows of a tile]."""
        tile_rows = -(-self.rows // -(-self.rows * self.columns // self.tile_weights))
        # With many short rows, the last tiles could be empty; they are left out.
        return -(-self.rows // tile_rows), SIZES[self.kind][1], self.columns // self.block_weights, tile_rows

    @property
    def size_bytes(self) -> int:
        tiles, block_bytes, blocks, rows = self.shape
        return tiles * block_bytes * blocks * rows * (self.experts or 1)

    def laid(self, rows: Tensor) -> Tensor:
        """Arrange a file's bytes [rows, bytes of a row] in `shape`.

        The bytes of experts, [experts, rows, bytes of a row], become [experts, *shape].
        """
        _, block_bytes, blocks, tile_rows = self.shape
        matrices = rows.view(-1, self.rows, rows.shape[-1])
        laid = torch.zeros((len(matrices), *self.shape), dtype=torch.uint8)
        for matrix, own in zip(laid, matrices, strict=True):
            for tile, part in zip(matrix, torch.split(own, tile_rows), strict=True):
                tile[..., : len(part)] = part.view(-1, blocks, block_bytes).permute(2, 1, 0)
        return laid[0] if self.experts is None else laid


class BlockMatrix(nn.Module):
    """A matrix [rows, columns], or one for each expert, in a `BlockLayout`."""

    planes: Tensor

    def __init__(self, layout: BlockLayout) -> None:
        super().__init__()
        self.layout = layout
        shape = layout.shape if layout.experts is None else (layout.experts, *layout.shape)
        self.register_buffer("planes", torch.empty(shape, dtype=torch.uint8))

    def times(self, vectors: Tensor, *, expert: int | None = None) -> Tensor:
        """Return the products [..., rows] of vectors [..., columns] with the matrix, in the vectors' dtype."""
        layout, planes = self.layout, self.planes if expert is None else self.planes[expert]
        _, _, blocks, tile_rows = layout.shape
        # In a tile, the first weights of all blocks of a row precede the second ones.
        turned = vectors.reshape(-1, blocks, layout.block_weights).transpose(1, 2).reshape(-1, layout.columns)
        most_weights = TILE_WEIGHTS if planes.device.type == "cpu" else CARD_WEIGHTS
        at_once = max(1, most_weights // (tile_rows * layout.columns))
        found = []
        for part in torch.split(planes, at_once):
            weights = dequantise(layout.kind, part.transpose(0, 1).flatten(1))
            matrices = weights.view(layout.block_weights, len(part), blocks, tile_rows).transpose(0, 1)
            matrices = matrices.reshape(len(part), layout.columns, tile_rows).to(vectors.dtype)
            found += [turned @ matrix for matrix in matrices]
        whole = torch.cat(found, 1) if len(found) > 1 else found[0]
        return whole[:, : layout.rows].reshape(*vectors.shape[:-1], layout.rows)

    def rows_of(self, numbers: Tensor) -> Tensor:
        """Return the rows with these numbers [...] in float32, [..., columns]."""
        layout = self.layout
        weights = dequantise(layout.kind, self.planes_of(numbers.flatten()))
        turned = weights.view(layout.block_weights, numbers.numel(), -1).permute(1, 2, 0)
        return turned.reshape(*numbers.shape, layout.columns)

    def planes_of(self, rows: Tensor) -> Planes:
        """Return the transposed blocks [bytes of a block, blocks] of the rows with these numbers [rows]."""
        _, block_bytes, _, tile_rows = self.layout.shape
        found = self.planes[rows // tile_rows, :, :, rows % tile_rows]
        return found.transpose(0, 1).reshape(block_bytes, -1)


class BlockLinear(nn.Module):
    """Replaces a linear layer by one with weights in blocks."""

    _like: Tensor

    def __init__(self, matrix: BlockMatrix, bias: nn.Parameter | None, *, is_shared: bool = False) -> None:
        """`is_shared` means that another module owns the matrix."""
        super().__init__()
        self.in_features, self.out_features = matrix.layout.columns, matrix.layout.rows
        self.bias = bias
        if not is_shared:
            self.matrix = matrix
        # In a tuple, so that a shared matrix is not a submodule.
        self._matrix = (matrix,)
        # Carries the dtype and device of the model.
        self.register_buffer("_like", torch.empty(0), persistent=False)

    @property
    def blocks(self) -> BlockMatrix:
        """The matrix, which may belong to another module."""
        return self._matrix[0]

    @property
    def weight(self) -> Tensor:
        """An empty tensor in the dtype of the model, which some modules read."""
        return self._like.expand(self.out_features, 0)

    def numbers(self) -> Tensor:
        """Return the weights [outputs, inputs] in float32."""
        matrix = self._matrix[0]
        return matrix.rows_of(torch.arange(self.out_features, device=matrix.planes.device))

    def forward(self, vectors: Tensor) -> Tensor:
        found = self._matrix[0].times(vectors)
        return found if self.bias is None else found + self.bias


class BlockEmbedding(nn.Embedding):
    """An embedding with rows in blocks; `stand_in` converts an embedding of any class."""

    matrix: BlockMatrix
    _like: Tensor

    @staticmethod
    def stand_in(embedding: nn.Embedding, matrix: BlockMatrix) -> None:
        """Replace an embedding's rows by a matrix; its class's own behaviour, for example scaling, is kept."""
        kind = type(embedding)
        del embedding.weight
        # This class's methods replace those of `nn.Embedding`, but not those of the embedding's class.
        bases = (BlockEmbedding,) if kind is nn.Embedding else (kind, BlockEmbedding)
        embedding.__class__ = type(kind.__name__, bases, {"__module__": kind.__module__})
        embedding.matrix = matrix
        # Carries the dtype and device of the model.
        embedding.register_buffer("_like", torch.empty(0), persistent=False)

    def dequantise(self) -> None:
        """Become an embedding of the former class again, with its rows in float32."""
        rows = self.matrix.rows_of(torch.arange(self.num_embeddings))
        del self.matrix, self._like
        self.__class__ = next(base for base in (*type(self).__bases__, nn.Embedding) if base is not BlockEmbedding)
        self.register_parameter("weight", nn.Parameter(rows, requires_grad=False))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # there it is a parameter
        """An empty tensor in the dtype of the model, which some classes read."""
        return self._like.expand(self.num_embeddings, 0)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.matrix.rows_of(numbers).to(self._like.dtype)
