"""TCP connections that are started while the library loads, which saves a round trip to a remote peer."""

import errno
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from cosine_p2p.transport.addresses import Address, DialPolicy

MAX_SOCKETS: Final = 32  # Bounds open sockets: initial and known peers, at two or three addresses each.
FAMILIES: Final = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}


class EarlySockets:
    """Connects to `given` addresses and those that `DialPolicy` permits; `take` one to dial, `close` the rest."""

    def __init__(self, given: Sequence[Address] = ()) -> None:
        self._policy = DialPolicy(address.host for address in given)
        self._given = frozenset(given)
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self.begin(given)

    def begin(self, addresses: Iterable[Address]) -> None:
        """Start connecting to addresses; failures are left to the dial."""
        for address in addresses:
            place = address.host, address.port
            family = FAMILIES.get(address.host_kind)
            is_known = address.relay is not None or place in self._sockets or len(self._sockets) >= MAX_SOCKETS
            # No address was tried before, so the time does not matter.
            if (
                family is None
                or is_known
                or not (address in self._given or self._policy.permits(address.host, now_s=0.0))
            ):
                continue
            with suppress(OSError):
                begun = socket.socket(family, socket.SOCK_STREAM)
                begun.setblocking(False)
                if begun.connect_ex(place) in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                    self._sockets[place] = begun
                else:
                    begun.close()

    def take(self, host: str, port: int) -> socket.socket | None:
        """Return the socket of an address, which may still be connecting; None without one."""
        return self._sockets.pop((host, port), None)

    def close(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()
