"""The prefix cache: the slots that hold keys and values of the same tokens after the same prefix. Pure.

A prefix is identified at every 16th of its tokens by a digest of all tokens up to there. A block, the 16 tokens
before such a boundary, is cached once a sequence keeps it, and stays cached after the release of that sequence: it
is then idle, and evicted when its pages are needed, the least recently used first. The slots of a block may be in
several pages, since the tokens of a tree are fed in any order.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from cosine_engine.kv_pool import PAGE_TOKENS, PagePool

HASH_BYTES: Final = 32
"""Long enough against collisions, by which a client could give another's prompt its own prefix."""


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """The slots of the 16 tokens before a boundary, and their pages."""

    slots: "array[int]"
    pages: frozenset[int]


class BlockHashes:
    """The hashes of one sequence's prefix: the digest at each boundary so far.

    `uses[i]` is True if the sequence reads block i in the cache's slots, and not in a copy.
    """

    __slots__ = ("hashes", "root", "uses")

    def __init__(self, scope: str) -> None:
        """Create those of an empty prefix. The same tokens have different hashes in each scope."""
        self.root = blake2b(scope.encode(), digest_size=HASH_BYTES).digest()
        self.hashes: list[bytes] = []
        self.uses: list[bool] = []

    def next_hash(self, tokens: Sequence[int]) -> bytes:
        """Return the digest at the next boundary, of the last one and the tokens between them."""
        last = self.hashes[-1] if self.hashes else self.root
        return blake2b(last + array("q", tokens).tobytes(), digest_size=HASH_BYTES).digest()

    def append(self, block_hash: bytes, *, is_used: bool) -> None:
        self.hashes.append(block_hash)
        self.uses.append(is_used)

    def cut(self, blocks: int) -> None:
        """Drop all after the first `blocks` blocks."""
        del self.hashes[blocks:], self.uses[blocks:]


class PrefixCache:
    """Blocks of kept prefixes by hash, each held in the pool, with the number of open sequences that use it.

    Of two sequences that keep the same tokens the first one's block is cached. An idle block frees its slots only
    with its whole pages, whose other slots are unused meanwhile.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._blocks: dict[bytes, CachedBlock] = {}
        self._users: dict[bytes, int] = {}
        # Ordered by last use, oldest first.
        self._idle: dict[bytes, None] = {}
        self.forgotten_blocks = 0
        """Blocks evicted so far."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of blocks that no open sequence uses."""
        return len(self._idle) * PAGE_TOKENS

    def reuse(self, owner: int, hashes: BlockHashes, tokens: Sequence[int]) -> "array[int]":
        """Make the owner of no hashes yet a user of the longest known prefix that leaves a token; return its slots.

        A prefix whose end is no longer in its window pages does not count.
        """
        blocks: list[CachedBlock] = []
        for start in range(0, len(tokens) - PAGE_TOKENS, PAGE_TOKENS):
            block_hash = hashes.next_hash(tokens[start : start + PAGE_TOKENS])
            if block_hash not in self._blocks:
                break
            hashes.append(block_hash, is_used=True)
            blocks.append(self._blocks[block_hash])
        near = self._near_blocks
        whole = within = 0
        for number, block in enumerate(blocks, 1):
            within = within + 1 if self._is_visible(block) else 0
            if within >= min(near, number):
                whole = number
        hashes.cut(whole)
        slots = array("q")
        for block_hash, block in zip(hashes.hashes, blocks, strict=False):
            self._idle.pop(block_hash, None)
            self._users[block_hash] = self._users.get(block_hash, 0) + 1
            slots.extend(block.slots)
        used = blocks[:whole]
        self._pool.share(owner, _pages(used), near=_pages(used[-near:] if near else ()))
        return slots

    def extend(self, hashes: BlockHashes, tokens: "array[int]", slots: "array[int]") -> None:
        """Cache the new whole blocks of an open sequence, given its prefix; it holds the slots."""
        for start in range(len(hashes.hashes) * PAGE_TOKENS, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
            block = slice(start, start + PAGE_TOKENS)
            block_hash = hashes.next_hash(tokens[block])
            if block_hash in self._idle and not self._is_visible(self._blocks[block_hash]):
                # This copy is visible through a window, unlike the idle one.
                self._evict(block_hash)
            is_new = block_hash not in self._blocks
            if is_new:
                self._insert(block_hash, slots[block])
                self._users[block_hash] = 1
            hashes.append(block_hash, is_used=is_new)

    def leave(self, hashes: BlockHashes, slots: "array[int]") -> None:
        """Keep the blocks of a sequence about to be released as idle ones, given the slots of its prefix.

        The whole prefix counts as just used, its first block last, so that a prefix is evicted from its end.
        """
        for number in reversed(range(len(hashes.hashes))):
            block_hash = hashes.hashes[number]
            if hashes.uses[number]:
                self._users[block_hash] -= 1
                if self._users[block_hash]:
                    continue
                del self._users[block_hash]
            elif block_hash not in self._blocks:
                # The cached original of this block was evicted meanwhile.
                start = number * PAGE_TOKENS
                self._insert(block_hash, slots[start : start + PAGE_TOKENS])
            elif block_hash in self._users:
                continue
            self._idle.pop(block_hash, None)
            self._idle[block_hash] = None

    def make_room(self, pages: int) -> None:
        """Evict idle blocks until `pages` pages are free; none if that is impossible."""
        if pages > self._pool.available_pages:
            return
        while self._pool.free_pages < pages:
            self.forget_oldest()

    def forget_oldest(self) -> bool:
        """Evict the block with the oldest last use; return False if open sequences use all."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        self._evict(oldest)
        return True

    def has(self, block_hash: bytes, slots: "array[int]") -> bool:
        """Return True if the block with that hash is cached in these slots."""
        block = self._blocks.get(block_hash)
        return block is not None and block.slots == slots

    @property
    def _near_blocks(self) -> int:
        """The number of blocks before a token that it may see through a window."""
        windows = self._pool.windows
        return 0 if windows is None else -(-(windows.window_tokens - 1) // PAGE_TOKENS)

    def _is_visible(self, block: CachedBlock) -> bool:
        """Return True if a block is visible through a window."""
        windows = self._pool.windows
        return windows is None or all(map(windows.has, block.pages))

    def _evict(self, block_hash: bytes) -> None:
        """Drop an idle block."""
        del self._idle[block_hash]
        self._pool.uncache(self._blocks.pop(block_hash).pages)
        self.forgotten_blocks += 1

    def _insert(self, block_hash: bytes, slots: "array[int]") -> None:
        block = CachedBlock(slots, frozenset(slot // PAGE_TOKENS for slot in slots))
        self._pool.cache(block.pages)
        self._blocks[block_hash] = block


def _pages(blocks: Iterable[CachedBlock]) -> set[int]:
    return {page for block in blocks for page in block.pages}
