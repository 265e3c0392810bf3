"""Blocks of token ids keep their kind."""

from typing import Any

import numpy as np
import pytest
import torch

from cosine_p2p.huggingface.arrays import for_streamer, like, rows_of, token_for_streamer
from cosine_protocol.errors import UsageError

ROWS = [[1, 2, 3], [4, 5, 6]]
BLOCKS: list[Any] = [
    ROWS,
    tuple(map(tuple, ROWS)),
    np.array(ROWS, dtype=np.int32),
    torch.tensor(ROWS),
    torch.tensor(ROWS, dtype=torch.int32),
]


def test_a_block_is_answered_in_its_kind() -> None:
    wider = [(1, 2, 3, 7), (4, 5, 6, 8)]
    assert like(ROWS, wider) == [[1, 2, 3, 7], [4, 5, 6, 8]]
    array = like(np.array(ROWS, dtype=np.int32), wider)
    assert (type(array), array.dtype, array.tolist()) == (np.ndarray, np.int32, like(ROWS, wider))
    for dtype in (torch.int64, torch.int32):
        tensor = like(torch.tensor(ROWS, dtype=dtype), wider)
        assert (tensor.dtype, tensor.tolist()) == (dtype, like(ROWS, wider))


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_come_out_of_any_kind_and_a_streamer_sees_shapes(block: Any) -> None:
    assert rows_of(block, "input_ids") == ((1, 2, 3), (4, 5, 6))
    shown = for_streamer(block)
    assert (tuple(shown.shape), shown.tolist()) == ((2, 3), list(map(list, ROWS)))
    assert list(shown[1].tolist()) == ROWS[1]
    token = token_for_streamer(shown, 7)
    assert (tuple(token.shape), token.tolist()) == ((1,), [7])


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        *(
            (text, "must hold token ids, not text; apply the tokenizer first")
            for text in ("text", ["text"], ("a", "b"))
        ),
        ({"input_ids": ROWS}, r"write generate\(\*\*inputs\)"),
        *(
            (other, r"must have the shape \[batch, length\]")
            for other in (None, 5, [], [1, 2], torch.tensor([1, 2]))
        ),
        ([[1], [1, 2]], "pad them on the left"),
        ([[1.5]], "whole numbers"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(block: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"input_ids .*{sentence}"):
        rows_of(block, "input_ids")
