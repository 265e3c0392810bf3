"""Peers that a light client has met, kept between runs, so that the next one goes to those that answer."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.transport.addresses import parse_dialable

logger = logging.getLogger(__name__)

MAX_PEERS: Final = 16
"""Bounds the file: enough that some of them are there after days."""
MAX_DIALLED: Final = 5
"""How many of them are dialled beside the initial peers."""
MAX_ADDRESSES: Final = 4
"""Bounds the addresses of one peer."""
MAX_NETWORKS: Final = 8
"""Bounds the file: the networks used last."""
MAX_FILE_BYTES: Final = 256 * 1024
"""Above what these bounds allow with 400 bytes an address: a larger file is not ours."""
SILENCE_S: Final = 600.0
"""How long an initial peer that did not answer comes after the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPeer:
    """A peer by its addresses, which end in its id, and whether it answered when it was last asked."""

    maddrs: tuple[str, ...]
    has_answered: bool
    asked_at_s: float

    @property
    def peer_id(self) -> str:
        return self.maddrs[0].rpartition("/")[2]

    @classmethod
    def read(cls, value: Any) -> "KnownPeer":
        """From a JSON object. Raises `ValueError` for what is no peer that can be dialled."""
        match value:
            case {"maddrs": [str(), *_] as maddrs, "has_answered": bool(is_there), "asked_at_s": float(at_s)}:
                if len({parse_dialable(str(maddr)).peer_id for maddr in maddrs}) == 1:
                    return cls(maddrs=tuple(maddrs[:MAX_ADDRESSES]), has_answered=is_there, asked_at_s=at_s)
        raise ValueError("no known peer")


class KnownPeers:
    """The peers of a swarm that are remembered in a file. One that is missing, broken or too large holds none.

    `network` names the swarm: a network, and the initial peers that lead into the swarm that is meant.
    """

    def __init__(self, network: str, file: Path | None = None) -> None:
        self._network = network
        self._file = StateFile("peers.json", max_bytes=MAX_FILE_BYTES, file=file)

    def read(self) -> tuple[KnownPeer, ...]:
        """At most `MAX_PEERS`, those that answered last in front; what is no peer is left out."""
        values = self._file.read().get(self._network)
        peers = []
        for value in values if isinstance(values, list) else []:
            try:
                peers.append(KnownPeer.read(value))
            except ValueError:
                logger.debug("%s holds something that is no peer", self._file.path)
        return _best(peers)

    def note(self, met: Iterable[KnownPeer]) -> None:
        """Remember these, and of those known before as many as there is room for."""
        peers = {peer.peer_id: peer for peer in (*self.read(), *met)}
        networks = self._file.read()
        networks.pop(self._network, None)
        networks = {self._network: [asdict(peer) for peer in _best(peers.values())], **networks}
        self._file.write(dict(list(networks.items())[:MAX_NETWORKS]))


def _best(peers: Iterable[KnownPeer]) -> tuple[KnownPeer, ...]:
    return tuple(sorted(peers, key=lambda peer: (not peer.has_answered, -peer.asked_at_s))[:MAX_PEERS])


def order_peers(initial: Sequence[str], known: Sequence[KnownPeer], *, now_s: float) -> tuple[str, ...]:
    """The addresses to dial, in the order in which their peers are asked.

    Initial peers come first, for the user chose them; but those that did not answer lately come last, after others
    that did.
    """
    silent = {peer.peer_id for peer in known if not peer.has_answered and now_s - peer.asked_at_s < SILENCE_S}
    met = [peer for peer in known if peer.has_answered][:MAX_DIALLED]
    trusted = [maddr for maddr in initial if maddr.rpartition("/")[2] not in silent]
    return tuple(dict.fromkeys([*trusted, *(maddr for peer in met for maddr in peer.maddrs), *initial]))
