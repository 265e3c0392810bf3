"""Who owns which token slot of the KV pool: pure accounting, no tensors."""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from cosine_node.engine.base import OutOfPages

PAGE_TOKENS: Final = 16


class _Holding:
    """Pages of one owner, how many slots of each are in use, and the free slots, lowest last."""

    __slots__ = ("free", "used_per_page")

    def __init__(self) -> None:
        self.free: list[int] = []
        self.used_per_page: dict[int, int] = {}


class PagePool:
    """Pages of 16 token slots, lent to owners; slots inside an owner's pages are handed out one by one.

    Slot `s` lies in page `s // PAGE_TOKENS`. The lowest free slots go first and an owner's pages follow each
    other where they can, so that a context is often one run of slots and can be read without a copy.
    """

    def __init__(self, *, tokens: int) -> None:
        """A pool for at least `tokens` tokens, rounded up to whole pages."""
        self.pages = -(-tokens // PAGE_TOKENS)
        self._free = set(range(self.pages))
        self._lowest = list(range(self.pages))
        self._queued = set(self._lowest)
        self._holdings: dict[int, _Holding] = {}

    @property
    def capacity_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    @property
    def free_tokens(self) -> int:
        """Slots in pages that nobody owns."""
        return len(self._free) * PAGE_TOKENS

    @property
    def used_tokens(self) -> int:
        """Slots handed out."""
        return sum(sum(holding.used_per_page.values()) for holding in self._holdings.values())

    @property
    def slack_tokens(self) -> int:
        """Slots in owned pages that are not handed out."""
        return sum(len(holding.free) for holding in self._holdings.values())

    def reserve(self, demands: Mapping[int, int]) -> None:
        """Give each owner pages until it has that many free slots. All or nothing: raises `OutOfPages`."""
        missing = {owner: pages for owner, tokens in demands.items() if (pages := self._missing(owner, tokens))}
        needed = sum(missing.values())
        if needed > len(self._free):
            raise OutOfPages(f"{needed} pages are needed and {len(self._free)} of {self.pages} are free.")
        for owner, pages in missing.items():
            holding = self._holdings.setdefault(owner, _Holding())
            for _ in range(pages):
                self._lend(holding)

    def take(self, owner: int, tokens: int) -> list[int]:
        """Hand out `tokens` slots of an owner's pages, lowest first, adding pages. Raises `OutOfPages`."""
        self.reserve({owner: tokens})
        if not tokens:
            return []
        holding = self._holdings[owner]
        taken = holding.free[: -tokens - 1 : -1]
        del holding.free[-tokens:]
        for slot in taken:
            holding.used_per_page[slot // PAGE_TOKENS] += 1
        return taken

    def give_back(self, owner: int, slots: Iterable[int]) -> None:
        """Take slots back from an owner; a page that this empties returns to the pool."""
        holding = self._holdings.get(owner)
        returned = list(slots)
        if holding is None or not returned:
            return
        emptied = set()
        for slot in returned:
            page = slot // PAGE_TOKENS
            holding.used_per_page[page] -= 1
            if not holding.used_per_page[page]:
                emptied.add(page)
        holding.free.extend(returned)
        self._return_pages(holding, emptied)

    def release(self, owner: int) -> None:
        """Take back everything an owner has; an unknown owner has nothing."""
        holding = self._holdings.pop(owner, None)
        if holding is not None:
            self._return_pages(holding, set(holding.used_per_page))

    def _missing(self, owner: int, tokens: int) -> int:
        holding = self._holdings.get(owner)
        lacking = tokens - (len(holding.free) if holding else 0)
        return max(0, -(-lacking // PAGE_TOKENS))

    def _lend(self, holding: _Holding) -> None:
        page = self._pick(max(holding.used_per_page, default=-2) + 1)
        self._free.remove(page)
        holding.used_per_page[page] = 0
        first = page * PAGE_TOKENS
        holding.free.extend(range(first, first + PAGE_TOKENS))
        holding.free.sort(reverse=True)

    def _pick(self, following: int) -> int:
        if following in self._free:
            return following
        # Pages lent out of turn are still in the heap and are dropped when they come up.
        while True:
            page = heapq.heappop(self._lowest)
            self._queued.remove(page)
            if page in self._free:
                return page

    def _return_pages(self, holding: _Holding, pages: set[int]) -> None:
        if pages:
            holding.free = [slot for slot in holding.free if slot // PAGE_TOKENS not in pages]
        for page in pages:
            del holding.used_per_page[page]
            self._free.add(page)
            if page not in self._queued:
                self._queued.add(page)
                heapq.heappush(self._lowest, page)
        holding.free.sort(reverse=True)
