"""Attention of queries over keys and values that are laid out already: PyTorch's kernel, or step by step."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cosine_node.engine.row_tiles import RowTiles


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """The attention of one layer. With a softcap (Gemma 2, arXiv 2408.00118) or with sinks it goes step by step.

    Query heads that share keys are rows of one product: queries are [sequences, key heads, rows, width], keys and
    values [sequences, key heads, keys, width], `bias` [sequences, 1, rows, keys], `sinks` [1, key heads, rows, 1].
    """

    scale: float
    softcap: float | None = None

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, bias: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """[sequences, key heads, rows, value width]."""
        # PyTorch's kernels know neither a cap on scores nor sinks.
        if self.softcap is None and sinks is None:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=self.scale)
        # The softmax is float32, as in transformers' own modules: 16 bits would lose the small weights of long
        # contexts.
        scores = (queries @ keys.transpose(2, 3)).float() * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            scores = scores + bias
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            # A sink is one more key of each head, whose weight nothing is read for.
            joined = torch.cat([scores, sinks.float().expand(len(scores), -1, -1, -1)], -1)
            weights = joined.softmax(-1)[..., :-1]
        return weights.to(queries.dtype) @ values

    def numbers_per_query(self, keys: Tensor, values: Tensor, group: int, *, has_sinks: bool) -> int:
        """The numbers that are alive at once for a query of all heads: its scores, or the mask where they are not.

        PyTorch has kernels that keep no scores, but for keys as wide as values only.
        """
        is_fused = self.softcap is None and not has_sinks and keys.shape[3] == values.shape[3]
        return group * keys.shape[2] * (1 if is_fused else keys.shape[1])

    def in_tiles(
        self,
        tiles: RowTiles,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        bias: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        """The same in calls of the numbers of rows that `tiles` name; the rows of `bias` are padded already."""
        rows = queries.shape[2]
        padded = tiles.pad(queries)
        padded_sinks = None if sinks is None else tiles.pad(sinks)
        if padded.shape[2] <= tiles.limit:
            return self(padded, keys, values, bias=bias, sinks=padded_sinks)[:, :, :rows]
        outputs = [
            self(
                padded[:, :, start : start + tiles.limit],
                keys,
                values,
                bias=bias[:, :, start : start + tiles.limit],
                sinks=None if padded_sinks is None else padded_sinks[:, :, start : start + tiles.limit],
            )
            for start in range(0, padded.shape[2], tiles.limit)
        ]
        return torch.cat(outputs, 2)[:, :, :rows]
