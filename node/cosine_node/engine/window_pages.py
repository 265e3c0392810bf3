"""The pages of layers with a sliding window: where each page of the pool is in their own, smaller pool. Pure.

Such a layer looks back so many tokens and no further (Longformer, arXiv 2004.05150). A page of the pool has a
window page as long as some owner may still look at it. Then it is idle: its keys and values stay, for a request
that begins with the same tokens, until another page needs the room, the longest idle first.
"""

import numpy as np
import numpy.typing as npt

from cosine_node.engine.free_pages import FreePages
from cosine_node.engine.kv_pool import PAGE_TOKENS

Integers = npt.NDArray[np.int64]


class WindowPages:
    """Window pages for a pool of `pages`, for so many `tokens`; layers look back `window_tokens`."""

    def __init__(self, *, pages: int, tokens: int, window_tokens: int) -> None:
        self.window_tokens = window_tokens
        self._free = FreePages(-(-tokens // PAGE_TOKENS))
        # The page after the last one stands for none.
        self._table: Integers = np.full(pages, self._free.pages, dtype=np.int64)
        self._users = [0] * pages
        # Ordered by the end of their last use, oldest first.
        self._idle: dict[int, None] = {}

    @property
    def slots(self) -> int:
        """The slots of all window pages; those that `slots_of` gives where there is no page follow them."""
        return self._free.pages * PAGE_TOKENS

    @property
    def available_pages(self) -> int:
        """Window pages that no owner may look at."""
        return self._free.count + len(self._idle)

    def slots_of(self, slots: Integers) -> Integers:
        """The slots of window pages where these of the pool are; from `self.slots` on where they are not."""
        found: Integers = self._table[slots // PAGE_TOKENS] * PAGE_TOKENS + slots % PAGE_TOKENS
        return found

    def has(self, page: int) -> bool:
        """True while a page of the pool has a window page."""
        return bool(self._table[page] < self._free.pages)

    def take(self, page: int) -> None:
        """Give a page without one a window page, for its first user. One must be available."""
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
        """Count one user less; without any it is idle."""
        self._users[page] -= 1
        if not self._users[page]:
            self._idle[page] = None

    def clear(self, page: int) -> None:
        """Take the window page of a page without users away, if it has one."""
        if self.has(page):
            self._idle.pop(page, None)
            self._free.put(int(self._table[page]))
            self._table[page] = self._free.pages
