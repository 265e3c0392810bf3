"""Coverage of layers, and what a new stage should hold."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.stages.coverage import bars, gaps_sentence, holders, lacked_most, unheld
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.staged import ranges

LAYERS = 12


@st.composite
def parts(draw: st.DrawFn) -> LayerRange:
    first = draw(st.integers(0, LAYERS - 1))
    return LayerRange(first=first, end=draw(st.integers(first + 1, LAYERS)), layers=LAYERS)


HELD = st.lists(parts(), max_size=8)


@given(HELD)
def test_unheld_layers_are_those_without_holders(held: list[LayerRange]) -> None:
    counts = holders(held, layers=LAYERS)
    assert sum(counts) == sum(map(len, held))
    gaps = unheld(held, layers=LAYERS)
    assert [layer for layer in range(LAYERS) if not counts[layer]] == [
        layer for gap in gaps for layer in range(gap.first, gap.end)
    ]
    assert all(one.end < other.first for one, other in pairwise(gaps))
    assert len(bars(counts)) == LAYERS and bars(counts).count("×") == counts.count(0)


@given(HELD, st.integers(0, LAYERS))
def test_a_new_stage_holds_what_fewest_hold_and_what_fits(held: list[LayerRange], room: int) -> None:
    found = lacked_most(held, layers=LAYERS, fits=lambda layers: len(layers) <= room)
    counts = holders(held, layers=LAYERS)
    if not room:
        assert found is None
        return
    assert found is not None and len(found) <= room
    # The first of the layers that fewest hold, and none that more hold.
    assert found.first == counts.index(min(counts))
    assert set(counts[found.first : found.end]) == {min(counts)}
    meetings = {layer for one in held for layer in (one.first, one.end)} | {0, LAYERS}
    assert found.first in meetings
    # It is shorter than it could be only to end where another does.
    longer = found.end < LAYERS and counts[found.end] == min(counts) and len(found) < room
    assert not longer or found.end in meetings


@given(st.lists(st.integers(1, LAYERS), min_size=1, max_size=12))
def test_stages_that_come_one_after_the_other_hold_all_layers_before_any_twice(rooms: list[int]) -> None:
    held: list[LayerRange] = []
    for room in rooms:
        before = holders(held, layers=LAYERS)
        found = lacked_most(held, layers=LAYERS, fits=lambda layers, room=room: len(layers) <= room)  # type: ignore[misc]
        assert found is not None
        held.append(found)
        assert not all(before) or min(holders(held, layers=LAYERS)) >= 1
        if sum(map(len, held)) <= LAYERS:
            assert max(holders(held, layers=LAYERS)) == 1
            # Each begins where the one before ended.
            assert all(one.precedes(other) for one, other in pairwise(held))


def test_spares_of_other_sizes_end_where_stages_end() -> None:
    held = ranges(4, 8, 12)
    found = lacked_most(held, layers=12, fits=lambda layers: len(layers) <= 6)
    assert str(found) == "0:4"
    # Fits more than a stage has.
    found = lacked_most(held, layers=12, fits=lambda layers: len(layers) <= 9)
    assert str(found) == "0:8"
    # Less than any.
    found = lacked_most(held, layers=12, fits=lambda layers: len(layers) <= 3)
    assert str(found) == "0:3"


def test_gaps_and_bars_are_readable() -> None:
    held = [LayerRange(first=0, end=8, layers=24), LayerRange(first=16, end=20, layers=24)]
    gaps = unheld(held, layers=24)
    assert gaps_sentence(gaps) == "Layers 8:16 and 20:24 of 24 are held by nobody."
    assert gaps_sentence(gaps[:1]) == "Layers 8:16 of 24 are held by nobody."
    assert bars([0, 1, 2, 8, 30]) == "×▁▂██"
    # Stages of a model with as many layers as the target alone count.
    assert unheld(ranges(5), layers=3) == [LayerRange.whole(3)]
