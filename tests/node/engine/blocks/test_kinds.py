"""ggml's blocks are the numbers that the package `gguf` makes of them, bit for bit."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from cosine_node.engine.blocks.kinds import KINDS, dequantise
from cosine_node.engine.blocks.matrix import SIZES

BLOCKS = 513


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_that_of_gguf(kind: str) -> None:
    weights, size_bytes = SIZES[kind]
    # All bytes there are, so that scales are infinite, denormal or negative too, or no numbers.
    blocks = np.random.default_rng(7).integers(0, 256, (BLOCKS, size_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, GGMLQuantizationType[kind]).reshape(BLOCKS, weights)
    found = dequantise(kind, torch.from_numpy(blocks.T.copy())).numpy().T
    is_number = ~np.isnan(expected)
    assert found.dtype == np.float32
    assert is_number.mean() > 0.9
    assert (found.view(np.uint32) == expected.view(np.uint32))[is_number].all()
    assert np.isnan(found[~is_number]).all()


def test_the_kinds_of_files_that_people_run_are_known() -> None:
    assert KINDS.keys() >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"}
