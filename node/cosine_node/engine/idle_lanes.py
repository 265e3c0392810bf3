"""The lanes that hold cached prefixes after their sequences were released. Pure, no tensors."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.lanes import LaneMemory, Lanes
from cosine_node.engine.prefix_cache import PrefixCache

NOTHING: Final = -1
"""Stands in the place of a slot whose token is gone from a lane."""


@dataclass(frozen=True, slots=True)
class PrefixLane:
    """A lane and the slots of the prefix that it holds from the first token on."""

    number: int
    slots: "array[int]"

    def holds(self, start: int, block: "array[int]") -> bool:
        """True if these slots are what it holds from position `start` on."""
        return self.slots[start : start + PAGE_TOKENS] == block


@dataclass(frozen=True, slots=True)
class LanePart:
    """Positions from `start` to `stop` of a lane."""

    number: int
    start: int
    stop: int


def shared_tokens(slots: "array[int]", lanes: Sequence[PrefixLane]) -> int:
    """Tokens of the longest beginning, in whole blocks, that these lanes hold."""
    for start in range(0, len(slots) - PAGE_TOKENS + 1, PAGE_TOKENS):
        block = slots[start : start + PAGE_TOKENS]
        if not any(lane.holds(start, block) for lane in lanes):
            return start
    return len(slots) // PAGE_TOKENS * PAGE_TOKENS


def parts_of(slots: "array[int]", lanes: Sequence[PrefixLane]) -> list[LanePart]:
    """The lanes that together hold a prefix of whole blocks, each with the positions to be taken from it."""
    parts: list[LanePart] = []
    for start in range(0, len(slots), PAGE_TOKENS):
        block = slots[start : start + PAGE_TOKENS]
        lane = next(lane for lane in lanes if lane.holds(start, block))
        if parts and parts[-1].number == lane.number:
            parts[-1] = LanePart(lane.number, parts[-1].start, start + PAGE_TOKENS)
        else:
            parts.append(LanePart(lane.number, start, start + PAGE_TOKENS))
    return parts


class IdleLanes:
    """Lanes of released sequences, as long as a block of the prefix cache has its tokens in no other lane.

    `memory` frees the tokens of blocks that the cache has forgotten.
    """

    def __init__(self, memory: LaneMemory, lanes: Lanes, cache: PrefixCache) -> None:
        self._memory = memory
        self._lanes = lanes
        self._cache = cache
        # The longest idle first, each with the hashes of its blocks.
        self._idle: list[tuple[PrefixLane, list[bytes]]] = []

    @property
    def prefixes(self) -> list[PrefixLane]:
        return [lane for lane, _ in self._idle]

    def add(self, number: int, slots: "array[int]", hashes: Sequence[bytes], live: Iterable[PrefixLane]) -> None:
        """Take over a lane with the prefix of a sequence that the cache has just been told to keep."""
        whole_tokens = len(hashes) * PAGE_TOKENS
        self._memory.forget(number, whole_tokens)
        self._idle.append((PrefixLane(number, slots[:whole_tokens]), list(hashes)))
        self.tidy(live)

    def tidy(self, live: Iterable[PrefixLane]) -> None:
        """Forget what the cache has forgotten, and free lanes of which nothing is needed beside `live` ones."""
        others = list(live)
        # The newest lane goes on holding what several have.
        for entry in reversed(self._idle.copy()):
            lane, hashes = entry
            is_needed = False
            for number, block_hash in enumerate(hashes):
                start = number * PAGE_TOKENS
                block = lane.slots[start : start + PAGE_TOKENS]
                if block[0] == NOTHING:
                    continue
                if not self._cache.has(block_hash, block):
                    self._memory.forget(lane.number, start, start + PAGE_TOKENS)
                    lane.slots[start : start + PAGE_TOKENS] = array("q", [NOTHING] * PAGE_TOKENS)
                elif not any(other.holds(start, block) for other in others):
                    is_needed = True
            if is_needed:
                others.append(lane)
            else:
                self._idle.remove(entry)
                self._lanes.free(lane.number)
