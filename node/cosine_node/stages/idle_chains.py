"""Detection of a stage's idle chains, whose room other heads may take. Pure.

A working head never loses its room. A head that only joins keeps it until another one asks; for a while, further
chains of its peer or network count as idle from the start.
"""

import math
from dataclasses import dataclass
from typing import Final

from cosine_p2p.storage.memory import Remembered

IDLE_S: Final = 10.0
"""A chain without passes for this long is idle. Passes of a request are closer together, and feeding the kept
tokens again takes far less than the pause."""
FRESH_S: Final = 5.0
"""Time from a head's join to its first pass, while it sets up the other stages (`OPEN_S`)."""
IDLERS_S: Final = 60.0
"""Memory of peers that held room without work. Such a peer blocks others for at most `FRESH_S` of 65 s (with half
of it, of 35 s); meanwhile honest heads of its address range have no `FRESH_S`."""
MAX_IDLERS: Final = 1024
"""Bounds memory."""


@dataclass(slots=True)
class _HeldChain:
    peer_id: str
    network: str
    since_s: float
    has_worked: bool = False


class IdleChains:
    """The chains of one stage by id, and the time since when each is without work. Times never go back."""

    def __init__(self) -> None:
        self._held: dict[bytes, _HeldChain] = {}
        self._idlers = Remembered[str, bool](MAX_IDLERS, forgotten_s=IDLERS_S)

    def note_joined(self, chain: bytes, *, peer_id: str, network: str, now_s: float) -> None:
        """Record a new chain; `network` is the address range of its head, "" if unknown."""
        is_idler = self._idlers.get(peer_id, now_s) or self._idlers.get(network, now_s)
        self._held[chain] = _HeldChain(peer_id, network, -math.inf if is_idler else now_s)

    def note_begun(self, chain: bytes) -> None:
        """Record that a pass of a chain begins: it is not idle until the pass has ended."""
        self._held[chain].since_s = math.inf

    def note_worked(self, chain: bytes, *, now_s: float) -> None:
        """Record that a pass of a chain has ended."""
        held = self._held[chain]
        held.since_s, held.has_worked = now_s, True
        self._idlers.pop(held.peer_id)

    def note_ended(self, chain: bytes, *, now_s: float) -> None:
        """Record that a chain has ended; remember its peer and network if it never worked."""
        held = self._held.pop(chain)
        if not held.has_worked:
            for name in filter(None, (held.peer_id, held.network)):
                self._idlers.note(name, value=True, now_s=now_s)

    def idle(self, *, now_s: float) -> list[bytes]:
        """The idle chains, the longest idle first."""
        held = list(self._held.items())  # at once, for metrics ask in another thread
        found = [(one.since_s, chain) for chain, one in held if _is_idle(one, now_s)]
        return [chain for _, chain in sorted(found)]

    def in_network(self, network: str) -> list[bytes]:
        """The chains of an address range; none if it is unknown."""
        return [chain for chain, held in self._held.items() if network and held.network == network]


def _is_idle(held: _HeldChain, now_s: float) -> bool:
    return now_s - held.since_s >= (IDLE_S if held.has_worked else FRESH_S)
