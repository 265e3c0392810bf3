import numpy as np

from cosine_node.engine.attention_mask import AttentionMask
from cosine_node.engine.shape_buckets import BatchShape, pad


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


def test_rows_keep_their_sight_and_padding_sees_one_key() -> None:
    one, three = _mask(70, 1, 0), _mask(9, 3, 100)
    grid = pad([one, three], BatchShape(sequences=3, queries=4, keys=128))
    assert grid.places.tolist() == [0, 4, 5, 6]
    assert grid.slots[0].tolist() == [*range(70), *[0] * 58]
    assert grid.slots[1].tolist() == [*range(100, 109), *[100] * 119]
    assert not grid.hidden[0, 0, :70].any() and grid.hidden[0, 0, 70:].all()
    assert (~grid.hidden[1, :3, :9] == three.visible).all() and grid.hidden[1, :3, 9:].all()
    for row in (grid.hidden[0, 1], grid.hidden[1, 3], grid.hidden[2, 0]):
        assert not row[0] and row[1:].all()
