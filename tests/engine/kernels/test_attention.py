"""Attention is what PyTorch computes, and a token's depends on its path alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cosine_engine.kernels.attention import attend, attention_room
from cosine_engine.kernels.crew import Thread
from cosine_engine.kernels.elements import PAGE
from tests.engine.kernels.test_elements import by_slot, noise


@pytest.mark.parametrize(("width", "threads"), [(6, 1), (16, 1), (64, 1), (64, 3), (80, 2)])
def test_attention_is_that_of_pytorch_and_depends_on_the_path_alone(width: int, threads: int) -> None:
    key_heads, group, pages = 2, 3, 20
    slots = pages * PAGE
    heads, turned, values = (
        noise(60, 10, width),
        noise(pages, 2, width, PAGE, seed=1),
        noise(slots, 2, width, seed=2),
    )
    keys = by_slot(turned)
    drawn = np.random.default_rng(3)
    # A path over whole pages and single slots, shared by many tokens, then paths of their own.
    paths = np.concatenate(
        [np.arange(32, 96), drawn.permutation(32), np.arange(112, 260), drawn.permutation(slots)]
    )
    first = np.array([0] * 40 + [0, 5, 5, 244] * 5)
    count = np.concatenate([np.arange(195, 235), drawn.integers(1, 230, 20)])
    output = np.empty((60, key_heads * group, width), np.float32)
    room = attention_room(threads, group, width, 240)
    for thread in range(threads):
        mine = room[0][thread], room[1][thread], room[2][thread]
        attend(
            heads, turned, values, (paths, first, count), np.float32(0.3), mine, output, Thread(thread, threads, 0)
        )
    moved = np.concatenate([np.zeros(7, np.int64), paths])
    for token in range(60):
        path = paths[first[token] : first[token] + count[token]]
        queries = torch.from_numpy(heads[token, : key_heads * group])[:, None]
        seen, taken = (
            torch.from_numpy(each[path]).transpose(0, 1).repeat_interleave(group, 0) for each in (keys, values)
        )
        expected = F.scaled_dot_product_attention(queries, seen, taken, scale=0.3)[:, 0]
        torch.testing.assert_close(torch.from_numpy(output[token]), expected, rtol=1e-4, atol=1e-5)
        alone = np.empty((1, key_heads * group, width), np.float32)
        one = slice(token, token + 1)
        path_alone = moved, first[one] + 7, count[one]
        attend(heads[one], turned, values, path_alone, np.float32(0.3), mine, alone, Thread(0, 1, 0))
        assert (alone[0] == output[token]).all()
