"""Which chains of a stage hold room without work, so that it is another head's who asks for it. Pure.

A head that works is never sent away for another. One that only joins keeps its room while nobody else asks; and for
a while nothing that its peer, or its network, joins with counts as work to come before there is any.
"""

import math
from dataclasses import dataclass
from typing import Final

from cosine_p2p.storage.memory import Remembered

IDLE_S: Final = 10.0
"""A chain that has fed nothing for so long is idle: its room is another head's who asks for it. Between two passes
of a request lies less, and after a pause its head feeds anew what it holds in far less than the pause."""
FRESH_S: Final = 5.0
"""So long a head may take from its join to its first pass, while it sets up the other stages (`OPEN_S`)."""
IDLERS_S: Final = 60.0
"""For so long it is remembered who held room without any work. One who does nothing else keeps others out for
`FRESH_S` of 65 s at most, with half as long of 35; meanwhile honest heads of its address range do without
`FRESH_S`."""
MAX_IDLERS: Final = 1024
"""Bounds memory."""


@dataclass(slots=True)
class _Held:
    peer_id: str
    network: str
    since_s: float
    has_worked: bool = False


class IdleChains:
    """The chains of one stage, by their ids, and since when each has had no work. Times never go back."""

    def __init__(self) -> None:
        self._held: dict[bytes, _Held] = {}
        self._idlers = Remembered[str, bool](MAX_IDLERS, forgotten_s=IDLERS_S)

    def note_joined(self, chain: bytes, *, peer_id: str, network: str, now_s: float) -> None:
        """A head has set a chain up; `network` is its address range, "" where that is not known."""
        is_idler = self._idlers.get(peer_id, now_s) or self._idlers.get(network, now_s)
        self._held[chain] = _Held(peer_id, network, -math.inf if is_idler else now_s)

    def note_begun(self, chain: bytes) -> None:
        """A pass of a chain begins: it is not idle until that has ended."""
        self._held[chain].since_s = math.inf

    def note_worked(self, chain: bytes, *, now_s: float) -> None:
        """A pass of a chain has ended."""
        held = self._held[chain]
        held.since_s, held.has_worked = now_s, True
        self._idlers.pop(held.peer_id)

    def note_ended(self, chain: bytes, *, now_s: float) -> None:
        """A chain is gone; who had no work for it in all that time is remembered."""
        held = self._held.pop(chain)
        if not held.has_worked:
            for name in filter(None, (held.peer_id, held.network)):
                self._idlers.note(name, value=True, now_s=now_s)

    def idle(self, *, now_s: float) -> list[bytes]:
        """The chains without work, first those that have had none for the longest time."""
        held = list(self._held.items())  # at once, for metrics ask in another thread
        found = [(one.since_s, chain) for chain, one in held if _is_idle(one, now_s)]
        return [chain for _, chain in sorted(found)]

    def in_network(self, network: str) -> list[bytes]:
        """The chains of an address range; none where it is not known."""
        return [chain for chain, held in self._held.items() if network and held.network == network]


def _is_idle(held: _Held, now_s: float) -> bool:
    return now_s - held.since_s >= (IDLE_S if held.has_worked else FRESH_S)
