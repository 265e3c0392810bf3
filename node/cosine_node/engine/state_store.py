"""Recurrent states of a model, each as it was after the token in one slot of the KV pool. Pure.

A state cannot be taken back by a token, nor split among branches (STree, arXiv 2505.14969). What has lost its state
is fed again from the last token above it that has one.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

State = TypeVar("State")


class StateStore(Generic[State]):
    """States by slot, at most `capacity`: beyond that the one that was not used for longest is dropped."""

    def __init__(self, *, capacity: int) -> None:
        self.capacity = capacity
        # Ordered by last use, oldest first.
        self._states: dict[int, State] = {}

    def __len__(self) -> int:
        return len(self._states)

    def put(self, slot: int, state: State) -> None:
        """Store the state after the token in `slot`."""
        self._states.pop(slot, None)
        self._states[slot] = state
        if len(self._states) > self.capacity:
            del self._states[next(iter(self._states))]

    def last(self, slots: Sequence[int]) -> tuple[int, State | None]:
        """The last known state, and how many of the first of these tokens it covers; 0 and None without one."""
        for count in range(len(slots), 0, -1):
            state = self._states.pop(slots[count - 1], None)
            if state is not None:
                self._states[slots[count - 1]] = state
                return count, state
        return 0, None

    def discard(self, slots: Iterable[int]) -> None:
        """Forget the states of slots that other tokens are written to."""
        for slot in slots:
            self._states.pop(slot, None)
