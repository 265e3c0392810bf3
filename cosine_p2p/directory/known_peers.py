"""The peers that a light client knows, and the order in which it dials them and its initial peers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cosine_p2p.transport.addresses import parse_dialable

MAX_PEERS: Final = 16  # Bounds the file: enough that some of them still exist after days.
MAX_DIALLED: Final = 5  # The number of known peers that are dialled with the initial ones.
MAX_ADDRESSES: Final = 4  # Bounds the addresses of one peer.
DIAL_LATER_S: Final = 600.0  # How long an initial peer that did not answer is dialled after the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPeer:
    """A peer's addresses, which end in its id, and the result of the last request to it."""

    maddrs: tuple[str, ...]
    has_answered: bool
    asked_at_s: float

    @property
    def peer_id(self) -> str:
        return self.maddrs[0].rpartition("/")[2]

    @classmethod
    def read(cls, value: Any) -> "KnownPeer":
        """Read a JSON object. Raises `ValueError` unless it is a peer that can be dialled."""
        match value:
            case {"maddrs": [str(), *_] as maddrs, "has_answered": bool(is_there), "asked_at_s": float(at_s)}:
                if len({parse_dialable(str(maddr)).peer_id for maddr in maddrs}) == 1:
                    return cls(maddrs=tuple(maddrs[:MAX_ADDRESSES]), has_answered=is_there, asked_at_s=at_s)
        raise ValueError("no known peer")


def order_peers(initial: Sequence[str], known: Sequence[KnownPeer], *, now_s: float) -> tuple[str, ...]:
    """The addresses to dial, in order: initial peers, known peers that answered, silent initial peers."""
    silent = {peer.peer_id for peer in known if not peer.has_answered and now_s - peer.asked_at_s < DIAL_LATER_S}
    met = [peer for peer in known if peer.has_answered][:MAX_DIALLED]
    trusted = [maddr for maddr in initial if maddr.rpartition("/")[2] not in silent]
    return tuple(dict.fromkeys([*trusted, *(maddr for peer in met for maddr in peer.maddrs), *initial]))
