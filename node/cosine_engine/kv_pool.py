"""The KV pool's accounting: the allocated, shared, cached and free pages and token slots. Pure, no tensors.

`FreePages` are the free ones of a number of pages, `PagePool` the pages of a pool with their owners, and
`WindowPages` the pages with keys and values of layers with a sliding window.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from cosine_engine.base import OutOfPages
from cosine_protocol.errors import LocalProtocolError

PAGE_TOKENS: Final = 16
"""vLLM's default: on average half a page of a sequence, 8 slots, is left unused."""
Integers = npt.NDArray[np.int64]


class FreePages:
    """Pages by number, initially all free.

    The page after an owner's last one is taken if it is free; first pages are far apart to leave room for that. The
    pages of an owner are then mostly one run.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.count = pages
        """The number of free pages."""
        # One byte per page, since large pools and simulations have many.
        self._is_free = bytearray(b"\1") * pages
        # A heap with the free pages and some that were taken meanwhile; those in it are queued.
        self._lowest = list(range(pages))
        self._is_queued = bytearray(b"\1") * pages
        self._beginnings = 0

    def is_free(self, page: int) -> bool:
        return bool(self._is_free[page])

    def take(self, following: int) -> int:
        """Take a free page: the following one, or a first page far from others, or else the lowest."""
        page = following
        if not (0 <= page < self.pages and self._is_free[page]):
            # First pages are in the widest gaps, 0, 1/2, 1/4, 3/4, ...: bits in reverse order (van der Corput
            # 1935).
            bits = (self.pages - 1).bit_length()
            page = int(f"{self._beginnings:0{bits}b}"[::-1], 2) * self.pages >> bits if bits else 0
            self._beginnings = (self._beginnings + 1) % self.pages
        # Pages taken by the rules above are still in the heap, and are dropped when they reach its top.
        while not self._is_free[page]:
            page = heapq.heappop(self._lowest)
            self._is_queued[page] = False
        self._is_free[page] = False
        self.count -= 1
        return page

    def put(self, page: int) -> None:
        """Free a page that was taken."""
        self._is_free[page] = True
        self.count += 1
        if not self._is_queued[page]:
            self._is_queued[page] = True
            heapq.heappush(self._lowest, page)


class _Allocation:
    """The pages of one owner: those allocated to it with the bits of their used slots, and those it shares.

    `free_slots` are the unused slots of the allocated pages, the lowest last; `near` are the pages that it may see
    through a window.
    """

    __slots__ = ("free_slots", "near", "shared", "used_slots")

    def __init__(self) -> None:
        self.near: set[int] = set()
        self.free_slots: list[int] = []
        self.used_slots: dict[int, int] = {}
        self.shared: set[int] = set()

    @property
    def last_page(self) -> int:
        # Page -1 follows no page, so that an owner without pages gets a new first page.
        return max(self.used_slots, default=max(self.shared, default=-2))


class PagePool:
    """Pages of 16 token slots, allocated to owners; an owner's slots are allocated one by one inside its pages.

    Slot `s` is in page `s // PAGE_TOKENS`. An owner's lowest free slots are used first, and its pages are
    consecutive if possible, with the first pages of owners far apart. A context is then mostly one run of slots and
    can be read without a copy.

    A page is held by the owner it is allocated to, by the owners that share it, and by the prefix cache, which
    outlives owners. It is free once no holder is left; until then its free slots are used only by the owner it is
    allocated to. That owner must not free slots that a sharer or the cache reads before its own release.
    """

    def __init__(self, *, tokens: int, windows: "WindowPages | None" = None) -> None:
        """Create a pool for at least `tokens` tokens, in whole pages; `windows` are for as many pages."""
        self.pages = -(-tokens // PAGE_TOKENS)
        self.windows = windows
        self._free = FreePages(self.pages)
        self._allocations: dict[int, _Allocation] = {}
        # By page: the number of owners, and the number of its blocks in the cache.
        self._owners = [0] * self.pages
        self._cache_uses = [0] * self.pages
        self._only_cached = 0

    @property
    def capacity_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    @property
    def free_pages(self) -> int:
        """The number of pages without a holder."""
        return self._free.count

    @property
    def available_pages(self) -> int:
        """The number of pages without an owner: free ones, and cached ones."""
        return self._free.count + self._only_cached

    @property
    def free_tokens(self) -> int:
        """The number of slots in available pages."""
        return self.available_pages * PAGE_TOKENS

    def missing_pages(self, demands: Mapping[int, int]) -> int:
        """Return the number of pages that `reserve` would allocate."""
        return sum(self._missing(owner, tokens) for owner, tokens in demands.items())

    def check_available(self, pages: int) -> None:
        """Raise `OutOfPages` unless `pages` pages are available, and as many window pages."""
        if pages > self.available_pages:
            raise OutOfPages(f"{pages} pages are needed and {self.available_pages} of {self.pages} are free.")
        if self.windows is not None and pages > self.windows.available_pages:
            raise OutOfPages(f"{pages} window pages are needed and {self.windows.available_pages} are free.")

    def reserve(self, demands: Mapping[int, int]) -> None:
        """Allocate pages to each owner until it has that many free slots. All or nothing: raises `OutOfPages`."""
        missing = {owner: pages for owner, tokens in demands.items() if (pages := self._missing(owner, tokens))}
        needed = sum(missing.values())
        if needed > self._free.count:
            raise OutOfPages(f"{needed} pages are needed and {self.available_pages} of {self.pages} are free.")
        self.check_available(needed)
        for owner, pages in missing.items():
            allocation = self._allocations.setdefault(owner, _Allocation())
            page = allocation.last_page
            for _ in range(pages):
                page = self._free.take(page + 1)
                self._owners[page] = 1
                if self.windows is not None:
                    self.windows.take(page)
                    allocation.near.add(page)
                allocation.used_slots[page] = 0
                allocation.free_slots.extend(range(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS))
            allocation.free_slots.sort(reverse=True)

    def allocate(self, owner: int, tokens: int) -> list[int]:
        """Allocate `tokens` slots of an owner's pages, lowest first, adding pages. Raises `OutOfPages`."""
        self.reserve({owner: tokens})
        if not tokens:
            return []
        allocation = self._allocations[owner]
        slots = allocation.free_slots[: -tokens - 1 : -1]
        del allocation.free_slots[-tokens:]
        for slot in slots:
            allocation.used_slots[slot // PAGE_TOKENS] |= _bit(slot)
        return slots

    def free(self, owner: int, slots: Iterable[int]) -> None:
        """Free slots of an owner, and those of its pages that have no used slot any more.

        Raises `LocalProtocolError`, and changes nothing, if one is not allocated to this owner.
        """
        freed = list(slots)
        allocation = self._allocations.get(owner, _Allocation())
        used: dict[int, int] = {}
        for slot in freed:
            page = slot // PAGE_TOKENS
            bits = used.get(page, allocation.used_slots.get(page, 0))
            if not bits & _bit(slot):
                raise LocalProtocolError(f"Slot {slot} is not handed out to owner {owner}.")
            used[page] = bits ^ _bit(slot)
        allocation.used_slots.update(used)
        allocation.free_slots.extend(freed)
        emptied = {page for page, bits in used.items() if not bits}
        if emptied:
            allocation.free_slots = [slot for slot in allocation.free_slots if slot // PAGE_TOKENS not in emptied]
        self._leave(allocation, emptied)
        for page in emptied:
            del allocation.used_slots[page]
            self._drop_owner(page)
        allocation.free_slots.sort(reverse=True)

    def share(self, owner: int, pages: Iterable[int], *, near: Iterable[int] = ()) -> None:
        """Let an owner hold pages allocated to others until its release.

        It may see those of `near` through a window; they must have window pages. Raises `LocalProtocolError` for a
        free page.
        """
        shared = set(pages)
        if not shared:
            return
        self._check_held(shared)
        allocation = self._allocations.setdefault(owner, _Allocation())
        for page in shared - allocation.shared:
            self._only_cached -= not self._owners[page]
            self._owners[page] += 1
        allocation.shared |= shared
        if self.windows is not None:
            for page in set(near) - allocation.near:
                self.windows.join(page)
                allocation.near.add(page)

    def near_pages(self, owner: int) -> int:
        """Return the number of pages that an owner may see through a window."""
        return len(self._allocations[owner].near) if owner in self._allocations else 0

    def look_only_at(self, owner: int, pages: set[int]) -> None:
        """Restrict the pages that an owner sees through a window to these and those with free slots for it."""
        allocation = self._allocations[owner]
        unfinished = {slot // PAGE_TOKENS for slot in allocation.free_slots}
        self._leave(allocation, allocation.near - pages - unfinished)

    def release(self, owner: int) -> None:
        """Free everything an owner has; an unknown owner has nothing."""
        allocation = self._allocations.pop(owner, _Allocation())
        self._leave(allocation, set(allocation.near))
        for page in (*allocation.used_slots, *allocation.shared):
            self._drop_owner(page)

    def cache(self, pages: Iterable[int]) -> None:
        """Hold pages for the prefix cache, once more for each call. Raises `LocalProtocolError` for a free page."""
        cached = set(pages)
        self._check_held(cached)
        for page in cached:
            self._cache_uses[page] += 1

    def uncache(self, pages: Iterable[int]) -> None:
        """Undo one `cache` of these pages. Raises `LocalProtocolError` for a page that is not cached."""
        uncached = set(pages)
        if not all(self._cache_uses[page] for page in uncached):
            raise LocalProtocolError(f"Not all pages of {sorted(uncached)} are retained.")
        for page in uncached:
            self._cache_uses[page] -= 1
            if not self._owners[page] and not self._cache_uses[page]:
                self._only_cached -= 1
                self._set_free(page)

    def _missing(self, owner: int, tokens: int) -> int:
        allocation = self._allocations.get(owner)
        lacking = tokens - (len(allocation.free_slots) if allocation else 0)
        return max(0, -(-lacking // PAGE_TOKENS))

    def _check_held(self, pages: set[int]) -> None:
        if free := sorted(page for page in pages if self._free.is_free(page)):
            raise LocalProtocolError(f"No owner holds the pages {free}.")

    def _leave(self, allocation: _Allocation, pages: set[int]) -> None:
        """Hide pages from an owner's window."""
        if self.windows is not None:
            for page in sorted(pages & allocation.near):
                self.windows.leave(page)
            allocation.near -= pages

    def _drop_owner(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page]:
            return
        if self._cache_uses[page]:
            self._only_cached += 1
        else:
            self._set_free(page)

    def _set_free(self, page: int) -> None:
        self._free.put(page)
        if self.windows is not None:
            self.windows.clear(page)


def _bit(slot: int) -> int:
    return 1 << slot % PAGE_TOKENS


class WindowPages:
    """The places of a pool's `pages` in the smaller pool of layers that look back only `window_tokens`.

    In such a layer a token sees no earlier ones (Longformer, arXiv 2004.05150). A page of the pool has a window
    page, out of those for `tokens` tokens, while an owner may see it. Afterwards it is idle: its keys and values
    stay, for a request that begins with the same tokens, until another page needs the room, the longest idle first.
    """

    def __init__(self, *, pages: int, tokens: int, window_tokens: int) -> None:
        self.window_tokens = window_tokens
        self._free = FreePages(-(-tokens // PAGE_TOKENS))
        # The page after the last one means none.
        self._table: Integers = np.full(pages, self._free.pages, dtype=np.int64)
        self._users = [0] * pages
        # Ordered by the end of their last use, oldest first.
        self._idle: dict[int, None] = {}

    @property
    def slots(self) -> int:
        """The number of slots in window pages; `slots_of` returns higher numbers for pages without one."""
        return self._free.pages * PAGE_TOKENS

    @property
    def available_pages(self) -> int:
        """The number of window pages that no owner may see."""
        return self._free.count + len(self._idle)

    def slots_of(self, slots: Integers) -> Integers:
        """Return the slots of window pages for slots of the pool; from `self.slots` on without a window page."""
        found: Integers = self._table[slots // PAGE_TOKENS] * PAGE_TOKENS + slots % PAGE_TOKENS
        return found

    def has(self, page: int) -> bool:
        """Return True if a page of the pool has a window page."""
        return bool(self._table[page] < self._free.pages)

    def take(self, page: int) -> None:
        """Give a page its window page, for its first user. One must be available."""
        if not self._free.count:
            self.clear(next(iter(self._idle)))
        before = int(self._table[page - 1]) if page else -2
        self._table[page] = self._free.take(before + 1 if before < self._free.pages else -1)
        self._users[page] = 1

    def join(self, page: int) -> None:
        """Count one more user of a page that has a window page."""
        self._idle.pop(page, None)
        self._users[page] += 1

    def leave(self, page: int) -> None:
        """Count one user less; without any the page is idle."""
        self._users[page] -= 1
        if not self._users[page]:
            self._idle[page] = None

    def clear(self, page: int) -> None:
        """Free the window page of a page without users, if it has one."""
        if self.has(page):
            self._idle.pop(page, None)
            self._free.put(int(self._table[page]))
            self._table[page] = self._free.pages
