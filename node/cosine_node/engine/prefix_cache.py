"""Kept prefixes by their content: which slots already hold the keys and values of the same tokens. Pure.

A prefix is known at every 16th of its tokens by a digest of all tokens up to there. A block, the 16 tokens before
such a boundary, is indexed as soon as a sequence keeps it, and stays so when that sequence is released: it is then
idle, and forgotten when its pages are needed, the least recently used first.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool

KEY_BYTES: Final = 32
"""Long enough that nobody finds two prefixes of one key: with it a client could give another's prompt its own."""


@dataclass(frozen=True, slots=True)
class Block:
    """Where the 16 tokens before a boundary are, and the pages these slots lie in."""

    slots: "array[int]"
    pages: frozenset[int]


class Chain:
    """How far one sequence's prefix is hashed: the digest at each boundary so far.

    `uses[i]` says whether the sequence reads block i where the index has it, and not a copy of its own.
    """

    __slots__ = ("keys", "root", "uses")

    def __init__(self, scope: str) -> None:
        """The chain of an empty prefix. Chains of different scopes never meet."""
        self.root = blake2b(scope.encode(), digest_size=KEY_BYTES).digest()
        self.keys: list[bytes] = []
        self.uses: list[bool] = []

    @property
    def tip(self) -> bytes:
        return self.keys[-1] if self.keys else self.root

    def append(self, key: bytes, *, is_used: bool) -> None:
        self.keys.append(key)
        self.uses.append(is_used)


class PrefixCache:
    """Blocks of kept prefixes by digest, each held in the pool, and how many open sequences use each.

    Of two sequences that keep the same tokens the first one's block is indexed. An idle block gives its slots up
    only together with its whole pages; the other slots of these pages are nobody's as long as it stays.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._blocks: dict[bytes, Block] = {}
        self._users: dict[bytes, int] = {}
        # Ordered by last use, oldest first.
        self._idle: dict[bytes, None] = {}

    @property
    def cached_tokens(self) -> int:
        """Tokens of blocks that no open sequence uses."""
        return len(self._idle) * PAGE_TOKENS

    def reuse(self, owner: int, chain: Chain, tokens: Sequence[int]) -> "array[int]":
        """Make the owner of an empty chain a user of the longest known prefix that leaves a token; its slots."""
        slots = array("q")
        pages: set[int] = set()
        for key in self._known(chain.root, tokens):
            self._idle.pop(key, None)
            self._users[key] = self._users.get(key, 0) + 1
            chain.append(key, is_used=True)
            slots.extend(self._blocks[key].slots)
            pages |= self._blocks[key].pages
        self._pool.share(owner, pages)
        return slots

    def _known(self, key: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        for start in range(0, len(tokens) - PAGE_TOKENS, PAGE_TOKENS):
            key = _following(key, tokens[start : start + PAGE_TOKENS])
            if key not in self._blocks:
                return
            yield key

    def extend(self, chain: Chain, tokens: "array[int]", slots: "array[int]") -> None:
        """Index what has become whole blocks of an open sequence, given its prefix; the slots are held by it."""
        for start in range(len(chain.keys) * PAGE_TOKENS, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
            block = slice(start, start + PAGE_TOKENS)
            key = _following(chain.tip, tokens[block])
            is_new = key not in self._blocks
            if is_new:
                self._insert(key, slots[block])
                self._users[key] = 1
            chain.append(key, is_used=is_new)

    def leave(self, chain: Chain, slots: "array[int]") -> None:
        """Retain the blocks of a sequence about to be released, given the slots of its prefix.

        The whole prefix counts as just used, its first block last, so that a prefix is forgotten from its end.
        """
        for number in reversed(range(len(chain.keys))):
            key = chain.keys[number]
            if chain.uses[number]:
                self._users[key] -= 1
                if self._users[key]:
                    continue
                del self._users[key]
            elif key not in self._blocks:
                start = number * PAGE_TOKENS
                self._insert(key, slots[start : start + PAGE_TOKENS])
            elif key in self._users:
                continue
            self._idle.pop(key, None)
            self._idle[key] = None

    def make_room(self, pages: int) -> None:
        """Forget idle blocks until so many pages are free; nothing if that many cannot be."""
        if pages > self._pool.available_pages:
            return
        while self._pool.free_pages < pages:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            self._pool.uncache(self._blocks.pop(oldest).pages)

    def _insert(self, key: bytes, slots: "array[int]") -> None:
        block = Block(slots, frozenset(slot // PAGE_TOKENS for slot in slots))
        self._pool.cache(block.pages)
        self._blocks[key] = block


def _following(key: bytes, tokens: Sequence[int]) -> bytes:
    """The digest at a boundary, of the one before it and the tokens between them."""
    return blake2b(key + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()
