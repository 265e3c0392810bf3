"""Lanes as tables of blocks of keys and values, such as vLLM's, which lanes share until one of them writes. Pure.

Position p of a lane is in slot `p % block_tokens` of block `p // block_tokens` of its table.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cosine_engine.base import OutOfMemory
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.lanes.lanes import FedToken


class BlockRow(NamedTuple):
    """Tokens at the positions of a lane from `first` on, and the blocks of all positions up to them."""

    tokens: list[int]
    first: int
    blocks: list[int]


class BlockLanes:
    """Implements `cosine_engine.lanes.lanes.LaneMemory`. `block_tokens` is a multiple of the page size.

    Block 0 is never used: vLLM writes its padding there.
    """

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._free = list(range(1, blocks))[::-1]
        self._users = [0] * blocks
        # None for a block whose tokens are forgotten.
        self._tables: dict[int, list[int | None]] = {}
        self._forgotten_pages: dict[int, set[int]] = {}
        self.copies: list[tuple[int, int]] = []
        """The blocks to be copied, each to another one and in this order, before the next rows are fed."""
        self.make_room: Callable[[], bool] = lambda: False
        """Forgets cached tokens; False if there are none."""

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        # Both lanes begin with the same tokens, so the contents of the block before `start` are valid for the
        # target too.
        for number in range(start // self._block_tokens, -(-stop // self._block_tokens)):
            self._put(target, number, self._block(source, number))

    def forget(self, lane: int, start: int, stop: int | None = None) -> None:
        table = self._tables.setdefault(lane, [])
        if stop is None:
            first = -(-start // self._block_tokens)
            for number in range(first, len(table)):
                self._put(lane, number, None)
            del table[first:]
            if not start:
                self._forgotten_pages.pop(lane, None)
            return
        forgotten = self._forgotten_pages.setdefault(lane, set())
        forgotten.update(range(start // PAGE_TOKENS, -(-stop // PAGE_TOKENS)))
        pages = self._block_tokens // PAGE_TOKENS
        for number in range(start // self._block_tokens, -(-stop // self._block_tokens)):
            if forgotten.issuperset(range(number * pages, (number + 1) * pages)):
                self._put(lane, number, None)

    def rows(self, fed: Sequence[FedToken]) -> tuple[list[BlockRow], dict[int, int]]:
        """Give tokens their blocks; return the rows to feed together, and the place of each token in them.

        A lane shares the block of a token's first lane, unless it continues otherwise within the block: then it has
        a copy, and the tokens there that are fed now are fed once more. Raises `OutOfMemory` without a free block.
        """
        of_lanes: dict[int, list[int]] = {}
        for place, token in enumerate(fed):
            for lane in token.lanes:
                of_lanes.setdefault(lane, []).append(place)
        rows: list[BlockRow] = []
        found: dict[int, int] = {}
        count = 0
        for lane, places in of_lanes.items():
            # The first and the last of the tokens in each block.
            ends: dict[int, tuple[int, int]] = {}
            for i, place in enumerate(places):
                number = fed[place].position // self._block_tokens
                ends[number] = (ends[number][0] if number in ends else i, i)
            begin = len(places)
            for number, (first, last) in ends.items():
                owner = fed[places[last]].lanes[0]
                if owner == lane:
                    is_begun = fed[places[first]].position % self._block_tokens > 0
                    self._make_own(lane, number, is_begun=is_begun)
                    begin = min(begin, first)
                else:
                    self._put(lane, number, self._block(owner, number))
            own = places[begin:]
            if not own:
                continue
            found |= {place: count + i for i, place in enumerate(own) if fed[place].lanes[0] == lane}
            count += len(own)
            end = fed[own[-1]].position // self._block_tokens + 1
            blocks = [0 if block is None else block for block in self._tables[lane][:end]]
            rows.append(BlockRow([fed[place].token for place in own], fed[own[0]].position, blocks))
        return rows, found

    def _block(self, lane: int, number: int) -> int | None:
        table = self._tables.get(lane, [])
        return table[number] if number < len(table) else None

    def _put(self, lane: int, number: int, block: int | None) -> None:
        table = self._tables.setdefault(lane, [])
        table += [None] * (number + 1 - len(table))
        before, table[number] = table[number], block
        if block is not None:
            self._users[block] += 1
        if before is not None:
            self._users[before] -= 1
            if not self._users[before]:
                self._free.append(before)

    def _make_own(self, lane: int, number: int, *, is_begun: bool) -> None:
        """Give a lane a block that no other lane reads; it keeps its contents if it is begun."""
        block = self._block(lane, number)
        if block is not None and self._users[block] == 1:
            return
        while not self._free:
            if not self.make_room():
                raise OutOfMemory("vLLM has no block left for the branches of token trees.")
        fresh = self._free.pop()
        if block is not None and is_begun:
            self.copies.append((block, fresh))
        self._put(lane, number, fresh)
