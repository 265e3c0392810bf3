"""Rows padded to a rectangle, and the short list of rectangles that passes are padded to."""

import numpy as np
import pytest

from cosine_node.engine.torch.pass_plan import AttentionMask, BatchShape, bucket_of, pad


def _mask(keys: int, queries: int, first_slot: int) -> AttentionMask:
    return AttentionMask(
        np.arange(keys) + first_slot,
        np.arange(keys),
        np.arange(keys - queries, keys),
        None if queries == 1 else np.tri(queries, keys, keys - queries, dtype=np.bool_),
    )


def test_a_shape_holds_the_longest_and_has_aligned_keys() -> None:
    shape = BatchShape.around([_mask(70, 1, 0), _mask(9, 3, 100)])
    assert shape == BatchShape(sequences=2, queries=3, keys=128)
    assert shape.tokens == 6


def test_rows_keep_their_masks_and_padding_sees_one_key() -> None:
    one, three = _mask(70, 1, 0), _mask(9, 3, 100)
    padded = pad([one, three], BatchShape(sequences=3, queries=4, keys=128))
    assert padded.token_indices.tolist() == [0, 4, 5, 6]
    assert padded.slots[0].tolist() == [*range(70), *[0] * 58]
    assert padded.slots[1].tolist() == [*range(100, 109), *[100] * 119]
    assert not padded.hidden[0, 0, :70].any() and padded.hidden[0, 0, 70:].all()
    assert (~padded.hidden[1, :3, :9] == three.visible).all() and padded.hidden[1, :3, 9:].all()
    for row in (padded.hidden[0, 1], padded.hidden[1, 3], padded.hidden[2, 0]):
        assert not row[0] and row[1:].all()


@pytest.mark.parametrize(
    ("shape", "fit"),
    [
        ((1, 1, 64), (1, 1, 128)),
        ((3, 2, 192), (4, 2, 192)),
        ((5, 5, 320), (8, 8, 384)),
        ((64, 1, 1024), (64, 1, 1024)),
        ((33, 2, 64), None),
        ((1, 17, 64), None),
    ],
)
def test_a_pass_takes_the_next_larger_shape(shape: tuple[int, int, int], fit: tuple[int, int, int] | None) -> None:
    found = bucket_of(BatchShape(sequences=shape[0], queries=shape[1], keys=shape[2]))
    expected = None if fit is None else BatchShape(sequences=fit[0], queries=fit[1], keys=fit[2])
    assert found == expected
