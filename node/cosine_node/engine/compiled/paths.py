"""The pool slots that each token of a pass attends to."""

from dataclasses import dataclass

import numpy as np

from cosine_node.engine.forward.kv_store import KvStore
from cosine_node.engine.forward.pass_plan import Feeds
from cosine_node.engine.kv_pool import Integers


@dataclass(frozen=True, slots=True)
class Paths:
    """Token t attends to the slots `slots[first[t] : first[t] + count[t]]`: its path from the first token on.

    Tokens on one path share the slots.
    """

    slots: Integers
    first: Integers
    count: Integers

    @classmethod
    def of(cls, feeds: Feeds) -> "Paths":
        """Return the paths of rows that are already in their trees."""
        slots: list[int] = []
        first: list[int] = []
        count: list[int] = []
        for tree, row in feeds:
            if row.is_chain:
                before = [*tree.slots, *(node.slot for node in tree.path(row.parents[0]))]
                first += [len(slots)] * len(row.nodes)
                count += range(len(before) + 1, len(before) + len(row.nodes) + 1)
                slots += [*before, *(tree.nodes[name].slot for name in row.nodes)]
                continue
            found: dict[int, tuple[int, int]] = {}
            inner = set(row.parents)
            for leaf in (name for name in row.nodes if name not in inner):
                path = [node.slot for node in tree.path(leaf)]
                for i, slot in enumerate(path):
                    found.setdefault(slot, (len(slots), len(tree.slots) + i + 1))
                slots += [*tree.slots, *path]
            places = [found[tree.nodes[name].slot] for name in row.nodes]
            first += [place for place, _ in places]
            count += [number for _, number in places]
        return cls(*(np.array(numbers, dtype=np.int64) for numbers in (slots, first, count)))

    def within(self, window: int | None, store: KvStore) -> "Paths":
        """Return the paths in layers with a sliding window, or the same without one."""
        if window is None:
            return self
        hidden = np.maximum(self.count - window, 0)
        return Paths(store.window_slots(self.slots), self.first + hidden, self.count - hidden)
