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


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_come_out_of_any_kind(block: Any) -> None:
    assert rows_of(block, "input_ids") == ((1, 2, 3), (4, 5, 6))


def test_a_block_is_answered_in_its_kind() -> None:
    wider = [(1, 2, 3, 7), (4, 5, 6, 8)]
    assert like(ROWS, wider) == [[1, 2, 3, 7], [4, 5, 6, 8]]
    array = like(np.array(ROWS, dtype=np.int32), wider)
    assert (type(array), array.dtype, array.tolist()) == (np.ndarray, np.int32, like(ROWS, wider))
    for dtype in (torch.int64, torch.int32):
        tensor = like(torch.tensor(ROWS, dtype=dtype), wider)
        assert (tensor.dtype, tensor.tolist()) == (dtype, like(ROWS, wider))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_streamer_sees_shapes(block: Any) -> None:
    shown = for_streamer(block)
    assert (tuple(shown.shape), shown.tolist()) == ((2, 3), list(map(list, ROWS)))
    assert list(shown[1].tolist()) == ROWS[1]
    token = token_for_streamer(shown, 7)
    assert (tuple(token.shape), token.tolist()) == ((1,), [7])


@pytest.mark.parametrize("block", ["text", ["text"], ("one", "two")])
def test_text_is_sent_to_the_tokenizer(block: Any) -> None:
    with pytest.raises(UsageError, match="input_ids must hold token ids, not text; apply the tokenizer first"):
        rows_of(block, "input_ids")


def test_what_a_tokenizer_gives_is_taken_apart() -> None:
    with pytest.raises(UsageError, match=r"write generate\(\*\*inputs\)"):
        rows_of({"input_ids": ROWS}, "input_ids")


@pytest.mark.parametrize("block", [None, 5, [], [1, 2], torch.tensor([1, 2])])
def test_other_shapes_are_refused(block: Any) -> None:
    with pytest.raises(UsageError, match=r"input_ids must have the shape \[batch, length\]"):
        rows_of(block, "input_ids")


def test_uneven_rows_and_fractions_are_refused() -> None:
    with pytest.raises(UsageError, match="pad them on the left"):
        rows_of([[1], [1, 2]], "input_ids")
    with pytest.raises(UsageError, match="whole numbers"):
        rows_of([[1.5]], "input_ids")
