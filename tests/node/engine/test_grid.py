import numpy as np

from cosine_node.engine.grid import GridShape, laid_out
from cosine_node.engine.sight import Sight


def _sight(keys: int, queries: int, first_slot: int) -> Sight:
    return Sight(
        np.arange(keys) + first_slot,
        np.arange(keys),
        np.arange(keys - queries, keys),
        None if queries == 1 else np.tri(queries, keys, keys - queries, dtype=np.bool_),
    )


def test_a_shape_holds_the_longest_and_has_aligned_keys() -> None:
    shape = GridShape.around([_sight(70, 1, 0), _sight(9, 3, 100)])
    assert shape == GridShape(sequences=2, queries=3, keys=128)
    assert shape.tokens == 6


def test_rows_keep_their_sight_and_padding_sees_one_key() -> None:
    one, three = _sight(70, 1, 0), _sight(9, 3, 100)
    grid = laid_out([one, three], GridShape(sequences=3, queries=4, keys=128))
    assert grid.places.tolist() == [0, 4, 5, 6]
    assert grid.slots[0].tolist() == [*range(70), *[0] * 58]
    assert grid.slots[1].tolist() == [*range(100, 109), *[100] * 119]
    assert not grid.hidden[0, 0, :70].any() and grid.hidden[0, 0, 70:].all()
    assert (~grid.hidden[1, :3, :9] == three.seen).all() and grid.hidden[1, :3, 9:].all()
    for row in (grid.hidden[0, 1], grid.hidden[1, 3], grid.hidden[2, 0]):
        assert not row[0] and row[1:].all()
