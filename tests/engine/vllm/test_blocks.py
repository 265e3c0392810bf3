"""Blocks of lanes: which are shared, copied and given back."""

import pytest

from cosine_engine.base import OutOfMemory
from cosine_engine.lanes.lanes import FedToken
from cosine_engine.vllm.blocks import BlockLanes, BlockRow


def blocks(count: int = 16) -> BlockLanes:
    return BlockLanes(blocks=count, block_tokens=32)


def feed(memory: BlockLanes, lanes: list[int], start: int, count: int) -> BlockRow:
    """Feed tokens named by their positions to lanes, which share them all; return the row of the first lane."""
    [row], found = memory.rows([FedToken(place, place, lanes, True) for place in range(start, start + count)])
    assert found == {place: place for place in range(count)}
    return row


def test_a_lane_is_a_row_over_its_blocks() -> None:
    memory = blocks()
    row = feed(memory, [0], 0, 40)
    assert (row.tokens, row.first, row.blocks) == (list(range(40)), 0, [1, 2])
    assert feed(memory, [0], 40, 1) == BlockRow([40], 40, [1, 2])
    assert memory.copies == []


def test_a_branch_has_a_copy_of_its_block_and_shares_those_before() -> None:
    memory = blocks()
    feed(memory, [0], 0, 40)
    memory.share(0, 1, 0, 40)
    # The first one to write has the copy, and the other one the block alone.
    assert feed(memory, [1], 40, 2).blocks == [1, 3]
    assert memory.copies == [(2, 3)]
    assert feed(memory, [0], 40, 2).blocks == [1, 2]
    assert memory.copies == [(2, 3)]


def test_a_trunk_that_is_fed_with_its_branches_is_fed_again_for_each() -> None:
    memory = blocks()
    feed(memory, [0], 0, 30)
    memory.share(0, 1, 0, 33)
    trunk = [FedToken(place, place, [0, 1], True) for place in (30, 31, 32)]
    rows, found = memory.rows([*trunk, FedToken(7, 33, [0], True), FedToken(8, 33, [1], True)])
    # Block 3 is begun by both: token 32 belongs to each of their rows, tokens 30 and 31 to a block that they share.
    assert [(row.tokens, row.first) for row in rows] == [([30, 31, 32, 7], 30), ([32, 8], 32)]
    assert rows[0].blocks[0] == rows[1].blocks[0] and rows[0].blocks[1] != rows[1].blocks[1]
    assert found == {0: 0, 1: 1, 2: 2, 3: 3, 4: 5}


def test_blocks_of_forgotten_tokens_are_free_once_no_lane_reads_them() -> None:
    memory = blocks()
    free = memory.free_blocks
    feed(memory, [0], 0, 70)
    memory.share(0, 1, 0, 64)
    memory.forget(0, 0)
    assert memory.free_blocks == free - 2
    # Half of a block is still cached.
    memory.forget(1, 0, 16)
    assert memory.free_blocks == free - 2
    memory.forget(1, 16, 32)
    assert memory.free_blocks == free - 1
    memory.forget(1, 0)
    assert memory.free_blocks == free


def test_a_prefix_may_continue_within_a_block_in_another_lane() -> None:
    memory = blocks()
    feed(memory, [0], 0, 16)
    memory.share(0, 1, 0, 16)
    feed(memory, [1], 16, 40)
    memory.share(0, 2, 0, 16)
    memory.share(1, 2, 16, 48)
    assert feed(memory, [2], 48, 1).blocks[0] == feed(memory, [1], 56, 1).blocks[0]


def test_cached_tokens_are_forgotten_for_a_block_and_none_is_an_error() -> None:
    memory = blocks(3)
    feed(memory, [0], 0, 64)
    with pytest.raises(OutOfMemory):
        feed(memory, [1], 0, 1)

    def forget() -> bool:
        memory.forget(0, 0)
        return True

    memory.make_room = forget
    assert feed(memory, [1], 0, 1).tokens == [0]
