"""The token trees of an engine as paths in a memory that stores only paths, such as llama.cpp's or vLLM's. Pure.

A lane is a path from the first token on, under one of the memory's few numbers. Common parts of lanes are
stored once. A tree takes as many lanes as it has leaves; if they run out, the lane that was extended longest ago is
given up, and its tokens are fed again when needed.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from cosine_engine.base import PREFIX, OutOfPages
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.prefix_cache import PrefixCache

Floats = npt.NDArray[np.float32]


class LaneMemory(Protocol):
    """Keys and values by lane and position."""

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        """Share another lane's positions from `start` to `stop` with a lane that has none there."""

    def forget(self, lane: int, start: int, stop: int | None = None) -> None:
        """Remove the positions from `start` to `stop`, or to the end, from a lane; free those of no other lane."""


@dataclass(frozen=True, slots=True)
class FedToken:
    """A token of a pass: its position, its lanes, and whether its logits are wanted.

    It sees the contents of its first lane before it.
    """

    token: int
    position: int
    lanes: Sequence[int]
    is_wanted: bool


class LaneModel(LaneMemory, Protocol):
    """A model with `lanes` lanes, fed at most `pass_tokens` tokens at once."""

    @property
    def lanes(self) -> int: ...

    @property
    def pass_tokens(self) -> int: ...

    def clear(self) -> None:
        """Forget and overwrite everything."""

    def abandon(self) -> None:
        """Stop the running pass in another thread soon."""

    def begin(self) -> None:
        """Reset `abandon` at the beginning of passes."""

    def logits(self, fed: Sequence[FedToken]) -> Floats:
        """Feed tokens; return the wanted logits [wanted, vocab], valid until the next pass.

        The tokens of a lane follow each other and the lane's contents. Raises `PassAbandoned`, `OutOfMemory` or
        `LocalProtocolError`, with nothing fed.
        """


class NoLane(OutOfPages):
    """No lane is free; one must be given up first."""


@dataclass(slots=True, eq=False)
class TreeLane:
    """The kept prefix of a sequence and the nodes of one path below it; `used` is its last extension."""

    number: int
    path: list[int] = field(default_factory=list)
    used: int = 0

    def has(self, name: int, depth: int) -> bool:
        """Return True if the path's node at that depth is this one; the first node below the prefix has depth 1."""
        return depth <= len(self.path) and (depth == 0 or self.path[depth - 1] == name)


class Lanes:
    """The lanes of open sequences, over the memory that holds them.

    A sequence has none before its first token, and at least one afterwards. Depths count the nodes of a path below
    the kept prefix, which has depth 0.
    """

    def __init__(self, memory: LaneMemory, *, lanes: int) -> None:
        self._memory = memory
        self._free = list(range(lanes))[::-1]
        self._of: dict[int, list[TreeLane]] = {}
        self._uses = 0

    @property
    def free_lanes(self) -> int:
        return len(self._free)

    def of(self, sequence: int) -> Sequence[TreeLane]:
        """Return the lanes of a sequence; its first one lasts longest."""
        return self._of.get(sequence, ())

    def numbers(self, sequence: int, name: int, depth: int) -> list[int]:
        """Return the numbers of the lanes of a node; none if it was never fed or its lanes were given up."""
        return [lane.number for lane in self.of(sequence) if lane.has(name, depth)]

    def extend(self, sequence: int, parent: int, depth: int, name: int, *, prefix_tokens: int) -> None:
        """Put a node below a parent of that depth, which a lane holds, into a lane of its sequence.

        The lane of a parent without children is extended; otherwise the path to the node is shared with a free
        lane. Raises `NoLane`, and changes nothing, if none is free.
        """
        self._uses += 1
        holding = [lane for lane in self.of(sequence) if lane.has(parent, depth)]
        lane = next((lane for lane in holding if len(lane.path) == depth), None)
        if lane is None:
            lane = TreeLane(self._take())
            self._of.setdefault(sequence, []).append(lane)
            if holding:
                self._memory.share(holding[0].number, lane.number, 0, prefix_tokens + depth)
                lane.path = holding[0].path[:depth]
        lane.path.append(name)
        lane.used = self._uses

    def begin(self, sequence: int) -> int:
        """Give a sequence without lanes its first one, and return its number. Raises `NoLane`."""
        lane = TreeLane(self._take())
        self._of[sequence] = [lane]
        return lane.number

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        """Make a path below the prefix part of it. At least one lane holds the whole path."""
        kept: list[TreeLane] = []
        dropped: list[TreeLane] = []
        for lane in self.of(sequence):
            (kept if lane.path[: len(path)] == list(path) else dropped).append(lane)
        for lane in kept:
            del lane.path[: len(path)]
        self._of[sequence] = kept
        for lane in dropped:
            self.free(lane.number)

    def prune(self, sequence: int, names: Collection[int], *, prefix_tokens: int) -> None:
        """Drop nodes and their descendants from lanes, and free a lane that then equals another."""
        lanes = self._of.get(sequence, [])
        for lane in list(lanes):
            cut = next((depth for depth, name in enumerate(lane.path) if name in names), None)
            if cut is None:
                continue
            self._memory.forget(lane.number, prefix_tokens + cut)
            del lane.path[cut:]
            if any(other is not lane and other.path[:cut] == lane.path for other in lanes):
                lanes.remove(lane)
                self.free(lane.number)
        if not prefix_tokens and not any(lane.path for lane in lanes):
            self.release(sequence)

    def give_up_branch(self, *, sequence: int | None = None, parent: int = PREFIX, depth: int = 0) -> bool:
        """Free the branch that was extended longest ago, unless it is the only one with this parent.

        The first lane of a sequence is no branch. Returns False without a branch to free.
        """
        holding = [lane for lane in self.of(sequence) if lane.has(parent, depth)] if sequence is not None else []
        branches = [
            (lane.used, owner, lane) for owner, lanes in self._of.items() for lane in lanes[1:] if holding != [lane]
        ]
        if not branches:
            return False
        _, owner, lane = min(branches, key=lambda branch: branch[0])
        self._of[owner].remove(lane)
        self.free(lane.number)
        return True

    def cut_back(self, sequence: int, parent: int, depth: int, *, prefix_tokens: int) -> None:
        """Give up the descendants of a parent in one of its lanes. Raises `OutOfPages` without a lane."""
        lane = next((lane for lane in self.of(sequence) if lane.has(parent, depth)), None)
        if lane is None:
            raise OutOfPages("No further request has room: each takes one of the paths that a memory can hold.")
        self._memory.forget(lane.number, prefix_tokens + depth)
        del lane.path[depth:]

    def leave(self, sequence: int) -> int | None:
        """Drop a sequence except its first lane, and return its number; the lane is the caller's from now on."""
        lanes = self._of.pop(sequence, [])
        for lane in lanes[1:]:
            self.free(lane.number)
        return lanes[0].number if lanes else None

    def release(self, sequence: int) -> None:
        """Drop a sequence and free its lanes."""
        for lane in self._of.pop(sequence, []):
            self.free(lane.number)

    def free(self, number: int) -> None:
        """Free a lane, such as one returned by `leave`."""
        self._memory.forget(number, 0)
        self._free.append(number)

    def _take(self) -> int:
        if not self._free:
            raise NoLane("All lanes are in use.")
        return self._free.pop()


NOTHING: Final = -1
"""The mark of a slot whose token is gone from a lane."""


@dataclass(frozen=True, slots=True)
class PrefixLane:
    """A lane and the slots of the prefix that it holds from the first token on."""

    number: int
    slots: "array[int]"

    def holds(self, start: int, block: "array[int]") -> bool:
        """Return True if it holds these slots from position `start` on."""
        return self.slots[start : start + PAGE_TOKENS] == block


@dataclass(frozen=True, slots=True)
class LanePart:
    """Positions from `start` to `stop` of a lane."""

    number: int
    start: int
    stop: int


def shared_tokens(slots: "array[int]", lanes: Sequence[PrefixLane]) -> int:
    """Return the number of tokens in the longest beginning, of whole blocks, that these lanes hold."""
    for start in range(0, len(slots) - PAGE_TOKENS + 1, PAGE_TOKENS):
        block = slots[start : start + PAGE_TOKENS]
        if not any(lane.holds(start, block) for lane in lanes):
            return start
    return len(slots) // PAGE_TOKENS * PAGE_TOKENS


def parts_of(slots: "array[int]", lanes: Sequence[PrefixLane]) -> list[LanePart]:
    """Return the lanes that together hold a prefix of whole blocks, each with its part of the positions."""
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
    """The only lanes, of released sequences, that hold the tokens of some block in the prefix cache.

    `memory` frees the tokens of blocks that the cache has evicted.
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
        """Take over a lane with the prefix of a sequence that the cache keeps now."""
        whole_tokens = len(hashes) * PAGE_TOKENS
        self._memory.forget(number, whole_tokens)
        self._idle.append((PrefixLane(number, slots[:whole_tokens]), list(hashes)))
        self.tidy(live)

    def tidy(self, live: Iterable[PrefixLane]) -> None:
        """Free the tokens of evicted blocks, and the lanes that are not needed in addition to the `live` ones."""
        others = list(live)
        # Of blocks in several lanes the newest lane keeps them.
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
