"""Who holds which pages and token slots of the KV pool: pure accounting, no tensors."""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from cosine_node.engine.base import OutOfPages
from cosine_protocol.errors import LocalProtocolError

PAGE_TOKENS: Final = 16


class _Holding:
    """What one owner holds: pages lent to it with the bits of their used slots, the free slots of these pages,
    lowest last, and pages of others it shares."""

    __slots__ = ("free", "lent", "shared")

    def __init__(self) -> None:
        self.free: list[int] = []
        self.lent: dict[int, int] = {}
        self.shared: set[int] = set()

    @property
    def last_page(self) -> int:
        return max(self.lent, default=max(self.shared, default=-2))


class PagePool:
    """Pages of 16 token slots, lent to owners; slots inside an owner's pages are handed out one by one.

    Slot `s` lies in page `s // PAGE_TOKENS`. An owner's lowest free slots go first and its pages follow each other
    where they can; owners begin far apart, so that there is room for that. A context is then mostly one run of
    slots and can be read without a copy.

    A page is held by the owner it was lent to, by owners that share it, and by retentions, which outlive owners.
    It is free again when nobody holds it; until then its free slots go to the owner it was lent to only. Which
    slots of a page others read is theirs to know: its owner must not give those back before its release.
    """

    def __init__(self, *, tokens: int) -> None:
        """A pool for at least `tokens` tokens, rounded up to whole pages."""
        self.pages = -(-tokens // PAGE_TOKENS)
        self._free = set(range(self.pages))
        self._lowest = list(range(self.pages))
        self._queued = set(self._lowest)
        self._holdings: dict[int, _Holding] = {}
        self._owners = [0] * self.pages
        self._retentions = [0] * self.pages
        self._only_retained = 0
        self._beginnings = 0

    @property
    def capacity_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def obtainable_pages(self) -> int:
        """Pages that no owner holds: the free ones, and those that would be if nothing were retained."""
        return len(self._free) + self._only_retained

    @property
    def free_tokens(self) -> int:
        """Slots in obtainable pages. With the used, slack and orphaned slots they are the capacity."""
        return self.obtainable_pages * PAGE_TOKENS

    @property
    def used_tokens(self) -> int:
        """Slots handed out to present owners. One that others share counts once."""
        return sum(mask.bit_count() for holding in self._holdings.values() for mask in holding.lent.values())

    @property
    def slack_tokens(self) -> int:
        """Slots in lent pages that are not handed out."""
        return sum(len(holding.free) for holding in self._holdings.values())

    @property
    def orphaned_tokens(self) -> int:
        """Slots in pages that owners share and whose own owner is gone; nobody is given one anew."""
        lent = sum(len(holding.lent) for holding in self._holdings.values())
        return (self.pages - self.obtainable_pages - lent) * PAGE_TOKENS

    def missing_pages(self, demands: Mapping[int, int]) -> int:
        """How many pages `reserve` would add."""
        return sum(self._missing(owner, tokens) for owner, tokens in demands.items())

    def reserve(self, demands: Mapping[int, int]) -> None:
        """Give each owner pages until it has that many free slots. All or nothing: raises `OutOfPages`."""
        missing = {owner: pages for owner, tokens in demands.items() if (pages := self._missing(owner, tokens))}
        needed = sum(missing.values())
        if needed > len(self._free):
            raise OutOfPages(f"{needed} pages are needed and {self.obtainable_pages} of {self.pages} are free.")
        for owner, pages in missing.items():
            holding = self._holdings.setdefault(owner, _Holding())
            self._lend(holding, pages)

    def take(self, owner: int, tokens: int) -> list[int]:
        """Hand out `tokens` slots of an owner's pages, lowest first, adding pages. Raises `OutOfPages`."""
        self.reserve({owner: tokens})
        if not tokens:
            return []
        holding = self._holdings[owner]
        taken = holding.free[: -tokens - 1 : -1]
        del holding.free[-tokens:]
        for slot in taken:
            holding.lent[slot // PAGE_TOKENS] |= _bit(slot)
        return taken

    def give_back(self, owner: int, slots: Iterable[int]) -> None:
        """Take slots back from an owner, who lets go of a page that this empties.

        Raises `LocalProtocolError`, and changes nothing, if one is not handed out to this owner.
        """
        returned = list(slots)
        holding = self._holdings.get(owner, _Holding())
        left: dict[int, int] = {}
        for slot in returned:
            page = slot // PAGE_TOKENS
            mask = left.get(page, holding.lent.get(page, 0))
            if not mask & _bit(slot):
                raise LocalProtocolError(f"Slot {slot} is not handed out to owner {owner}.")
            left[page] = mask ^ _bit(slot)
        holding.lent.update(left)
        holding.free.extend(returned)
        self._return_pages(holding, {page for page, mask in left.items() if not mask})

    def share(self, owner: int, pages: Iterable[int]) -> None:
        """Let an owner hold pages lent to others until its release. Raises `LocalProtocolError` for a free page."""
        shared = set(pages)
        self._check_held(shared)
        holding = self._holdings.setdefault(owner, _Holding())
        for page in shared - holding.shared:
            self._only_retained -= not self._owners[page]
            self._owners[page] += 1
        holding.shared |= shared

    def release(self, owner: int) -> None:
        """Take back everything an owner has; an unknown owner has nothing."""
        holding = self._holdings.pop(owner, _Holding())
        for page in (*holding.lent, *holding.shared):
            self._leave(page)

    def retain(self, pages: Iterable[int]) -> None:
        """Hold pages once more, for nobody in particular. Raises `LocalProtocolError` for a free page."""
        retained = set(pages)
        self._check_held(retained)
        for page in retained:
            self._retentions[page] += 1

    def forget(self, pages: Iterable[int]) -> None:
        """Undo one `retain` of these pages. Raises `LocalProtocolError` for a page that is not retained."""
        forgotten = set(pages)
        if not all(self._retentions[page] for page in forgotten):
            raise LocalProtocolError(f"Not all pages of {sorted(forgotten)} are retained.")
        for page in forgotten:
            self._retentions[page] -= 1
            if not self._owners[page] and not self._retentions[page]:
                self._only_retained -= 1
                self._set_free(page)

    def _missing(self, owner: int, tokens: int) -> int:
        holding = self._holdings.get(owner)
        lacking = tokens - (len(holding.free) if holding else 0)
        return max(0, -(-lacking // PAGE_TOKENS))

    def _check_held(self, pages: set[int]) -> None:
        if pages & self._free:
            raise LocalProtocolError(f"Nobody holds the pages {sorted(pages & self._free)}.")

    def _lend(self, holding: _Holding, pages: int) -> None:
        page = holding.last_page
        for _ in range(pages):
            page = self._pick(page + 1)
            self._free.remove(page)
            self._owners[page] = 1
            holding.lent[page] = 0
            holding.free.extend(range(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS))
        holding.free.sort(reverse=True)

    def _pick(self, following: int) -> int:
        """A free page: the following one, or a place to begin anew, or else the lowest."""
        if following in self._free:
            return following
        beginning = halving(self._beginnings, self.pages)
        self._beginnings = (self._beginnings + 1) % self.pages
        if beginning in self._free:
            return beginning
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
            del holding.lent[page]
            self._leave(page)
        holding.free.sort(reverse=True)

    def _leave(self, page: int) -> None:
        """One owner less holds a page."""
        self._owners[page] -= 1
        if self._owners[page]:
            return
        if self._retentions[page]:
            self._only_retained += 1
        else:
            self._set_free(page)

    def _set_free(self, page: int) -> None:
        self._free.add(page)
        if page not in self._queued:
            self._queued.add(page)
            heapq.heappush(self._lowest, page)


def halving(number: int, places: int) -> int:
    """The place of 0 <= number < places in a sequence that always falls into the widest gaps: 0, 1/2, 1/4, 3/4, ...

    Bits in reverse order (van der Corput 1935).
    """
    bits = (places - 1).bit_length()
    reverse = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
    return reverse * places >> bits


def _bit(slot: int) -> int:
    return 1 << slot % PAGE_TOKENS
