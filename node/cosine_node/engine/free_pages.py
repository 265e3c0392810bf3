"""Which of a number of pages are free, and which of them is best taken next. Pure."""

import heapq


class FreePages:
    """Pages by their number, all of them free at first.

    Who takes the page after its last one gets it where it is free; others begin far apart, so that there is room
    for that. What an owner takes is then mostly one run.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.count = pages
        """The number of pages that are free."""
        # A byte for each page: large pools have many, and so has a simulation of many nodes.
        self._is_free = bytearray(b"\1") * pages
        # A heap with the free pages and some that were taken meanwhile; those in it are queued.
        self._lowest = list(range(pages))
        self._is_queued = bytearray(b"\1") * pages
        self._beginnings = 0

    def is_free(self, page: int) -> bool:
        return bool(self._is_free[page])

    def take(self, following: int) -> int:
        """Take a free page: the following one, or a new beginning far from others, or else the lowest."""
        page = self._pick(following)
        self._is_free[page] = False
        self.count -= 1
        return page

    def put(self, page: int) -> None:
        """Make a page free that was taken."""
        self._is_free[page] = True
        self.count += 1
        if not self._is_queued[page]:
            self._is_queued[page] = True
            heapq.heappush(self._lowest, page)

    def _pick(self, following: int) -> int:
        if 0 <= following < self.pages and self._is_free[following]:
            return following
        beginning = halving(self._beginnings, self.pages)
        self._beginnings = (self._beginnings + 1) % self.pages
        if self._is_free[beginning]:
            return beginning
        # Pages taken by the rules above are still in the heap and are dropped when they come up.
        while True:
            page = heapq.heappop(self._lowest)
            self._is_queued[page] = False
            if self._is_free[page]:
                return page


def halving(number: int, pages: int) -> int:
    """The page of 0 <= number < pages in a sequence that always falls into the widest gaps: 0, 1/2, 1/4, 3/4, ...

    Bits in reverse order (van der Corput 1935).
    """
    bits = (pages - 1).bit_length()
    reverse = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
    return reverse * pages >> bits
