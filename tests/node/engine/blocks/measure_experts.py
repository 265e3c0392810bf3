"""What a layer's experts take in blocks and as numbers: `python -m tests.node.engine.blocks.measure_experts`.

The shape is that of Qwen3 30B A3B, 128 experts of which a token is sent to 8, the weights are random.
"""

import statistics
import sys
import time
from functools import partial
from typing import Final

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from cosine_node.engine.blocks.experts import experts_in_blocks
from cosine_node.engine.blocks.matrix import SIZES, BlockLayout, BlockMatrix

KIND: Final = "Q4_K"
TOKENS: Final = (1, 4, 8)
REPEATS: Final = 7


def random_matrices(weights: torch.nn.Parameter) -> BlockMatrix:
    """Blocks in place of the weights of all experts, [experts, rows, columns]; their scales are small numbers."""
    experts, rows, columns = weights.shape
    block_weights, block_bytes = SIZES[KIND]
    matrix = BlockMatrix(layout := BlockLayout(KIND, rows, columns, experts=experts))
    shape = (experts, rows, columns // block_weights * block_bytes)
    stored = torch.randint(0, 24, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    matrix.planes = layout.laid(stored)
    return matrix


def main() -> None:
    """Print the bytes of both, and milliseconds for each number of tokens, one thread, the two in turn."""
    torch.set_num_threads(1)
    config = Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, hidden_act="silu"
    )
    config._experts_implementation = "grouped_mm"
    dense, in_blocks = Qwen3MoeExperts(config), Qwen3MoeExperts(config)
    for name in ("gate_up_proj", "down_proj"):
        torch.nn.init.normal_(getattr(dense, name), std=0.02)
        matrix = random_matrices(getattr(in_blocks, name))
        delattr(in_blocks, name)
        setattr(in_blocks, name, matrix)
    held = [sum(each.nbytes for each in (*one.parameters(), *one.buffers())) for one in (dense, in_blocks)]
    sys.stdout.write(f"bytes: {held[0]:,} in float32, {held[1]:,} in {KIND}\n")
    drawn = torch.Generator().manual_seed(2)
    for tokens in TOKENS:
        hidden = torch.randn((tokens, config.hidden_size), generator=drawn)
        took_ms: dict[str, list[float]] = {"float32": [], KIND: []}
        for _ in range(REPEATS):
            chosen = torch.stack([torch.randperm(128, generator=drawn)[:8] for _ in range(tokens)])
            shares = torch.full((tokens, 8), 1 / 8)
            for name, compute in (("float32", dense), (KIND, partial(experts_in_blocks, in_blocks))):
                began_s = time.perf_counter()
                with torch.inference_mode():
                    compute(hidden, chosen, shares)
                took_ms[name].append(1e3 * (time.perf_counter() - began_s))
        told = ", ".join(f"{name} {statistics.median(each):.1f} ms" for name, each in took_ms.items())
        sys.stdout.write(f"{tokens} tokens: {told}\n")


if __name__ == "__main__":
    main()
