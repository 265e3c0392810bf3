"""The reachability of a node, judged by its findings: its addresses and relays, or the reason for none. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cosine_p2p.transport.addresses import Address, Scope, parse_address, scope_of

OBSERVERS: Final = 4  # Peers that must see one address before libp2p punches (go-libp2p 0.32, `ActivationThresh`).
LEAST_PORT: Final = 1024  # Lower ports belong to services of routers and printers.


class ReachKind(StrEnum):
    """The ways in which a node is reached, best first."""

    DIRECT = "direct"
    PUNCHED = "punched"
    RELAYED = "relayed"
    LOCAL = "local"
    UNTESTED = "untested"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """A node's reachability: the `addresses` to announce, its `relays` by peer id, and a `reason` as a clause."""

    kind: ReachKind
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        through = " and ".join(self.relays)
        said = {
            ReachKind.DIRECT: "others reach this node directly",
            ReachKind.PUNCHED: f"others meet this node through {through} and then reach it directly",
            ReachKind.RELAYED: f"others reach this node only through {through}",
            ReachKind.LOCAL: "only machines in its network reach this node",
            ReachKind.UNTESTED: "it is unknown whether others reach this node",
            ReachKind.NOBODY: "no peer can reach this node",
        }[self.kind]
        return f"{said}: {self.reason}" if self.reason else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A node's findings about itself.

    `own`: addresses at which it listens. `dialled_back`: addresses at which a peer reached it. `circuits`:
    addresses through relays. `seen_at`: addresses at which public peers see it, by peer. `asked_back`: the number
    of peers that tried to reach it. `public_peers`: the number of connected ones. `is_alone`: it has no initial
    peers. `is_named`: the user specified its addresses.
    """

    own: tuple[str, ...]
    dialled_back: tuple[str, ...] = ()
    circuits: tuple[str, ...] = ()
    seen_at: Mapping[str, str] | None = None
    asked_back: int = 0
    public_peers: int = 0
    is_alone: bool = False
    is_named: bool = False


def judge_reach(found: Findings) -> Reachable:
    public = [maddr for maddr in found.own if scope_at(maddr) is Scope.PUBLIC]
    only = "over IPv6 alone" if _is_v6_only(found.own) else ""
    relays = tuple(dict.fromkeys(filter(None, map(_relay_of, found.circuits))))
    if found.dialled_back:
        addresses = tuple(dict.fromkeys((*found.dialled_back, *public)))
        if found.circuits and not is_open_to_all(addresses):
            reason = f"over QUIC, and over TCP through {' and '.join(relays)}"
            addresses = tuple(dict.fromkeys((*addresses, *found.circuits)))
            return Reachable(kind=ReachKind.DIRECT, addresses=addresses, relays=relays, reason=reason)
        return Reachable(kind=ReachKind.DIRECT, addresses=addresses, reason=only)
    if found.circuits:
        near = public if found.public_peers else _of_this_network(found.own)
        kind, reason = _judge_mapping(found.seen_at or {})
        return Reachable(
            kind=kind, addresses=tuple(dict.fromkeys((*near, *found.circuits))), relays=relays, reason=reason
        )
    if not found.public_peers:
        addresses = _of_this_network(found.own)
        if public or found.is_alone:
            reason = "no public peer has tried"
            return Reachable(kind=ReachKind.UNTESTED, addresses=addresses, reason=reason)
        return Reachable(kind=ReachKind.LOCAL, addresses=addresses)
    if found.is_named and found.asked_back:
        reason = "the peers that tried to dial the address that it announces have not come through yet"
        return Reachable(kind=ReachKind.UNTESTED, addresses=tuple(public), reason=reason)
    if public and not found.asked_back:
        # No peer contradicts it.
        addresses = tuple(public)
        return Reachable(kind=ReachKind.UNTESTED, addresses=addresses, reason=only or "no peer has tried")
    door = "a firewall" if public else "its router"
    return Reachable(kind=ReachKind.NOBODY, reason=f"{door} blocks incoming connections, and no relay answers")


def _judge_mapping(seen_at: Mapping[str, str]) -> tuple[ReachKind, str]:
    """The kind of reachability through a relay, and the reason if peers cannot connect directly."""
    ends: dict[tuple[str, str], dict[str, int]] = {}
    for peer_id, maddr in seen_at.items():
        if (address := parsed(maddr)) is not None:
            ends.setdefault((address.host_kind, address.port_kind), {})[peer_id] = address.port
    ports: dict[str, int] = max(ends.values(), key=len, default={})
    if len(set(ports.values())) > 1:
        return ReachKind.RELAYED, "symmetric NAT, its router shows each peer another port"
    if len(ports) < OBSERVERS:
        return ReachKind.RELAYED, f"too few public peers, {len(ports)} of {OBSERVERS} for a direct way"
    return ReachKind.PUNCHED, ""


def is_open_to_all(maddrs: Iterable[str]) -> bool:
    """True if a light client can dial one of the addresses, that is, over plain TCP."""
    return any(address.is_plain_tcp for address in map(parsed, maddrs) if address is not None)


def is_relayed(announced: Sequence[str]) -> bool:
    return bool(announced) and all(_relay_of(maddr) for maddr in announced)


def parsed(maddr: str) -> Address | None:
    """Parse an address; None if it does not begin with a host and a port, such as a Unix socket."""
    try:
        return parse_address(maddr)
    except ValueError:
        return None


def scope_at(maddr: str) -> Scope:
    """The scope of the IP address (or of the relay's) in a multiaddr."""
    address = parsed(maddr)
    return scope_of(address.host) if address is not None else Scope.NONE


def best_first(maddrs: Iterable[str], *, local: Collection[str]) -> list[str]:
    """Sort a node's addresses by usefulness: public, of its network (`local` hosts first), of its machine."""

    def rank(maddr: str) -> tuple[int, bool, bool]:
        address = parsed(maddr)
        if address is None:
            return Scope.LOOPBACK + 1, True, True
        is_name = address.host_kind.startswith("dns")
        scope = Scope.PUBLIC if is_name else scope_of(address.host) or Scope.LOOPBACK + 1
        return scope, scope is Scope.PRIVATE and address.host not in local, not address.is_plain_tcp

    return sorted(dict.fromkeys(maddrs), key=rank)


def _relay_of(maddr: str) -> str | None:
    address = parsed(maddr)
    return address.peer_ids[0] if address is not None and "p2p-circuit" in address.layers else None


def _of_this_network(own: Sequence[str]) -> tuple[str, ...]:
    """The addresses of the widest scope."""
    widest = min((scope for maddr in own if (scope := scope_at(maddr))), default=Scope.NONE)
    return tuple(maddr for maddr in own if scope_at(maddr) is widest)


def _is_v6_only(own: Iterable[str]) -> bool:
    kinds = {
        address.host_kind for address in map(parsed, own) if address and scope_of(address.host) != Scope.LOOPBACK
    }
    return kinds == {"ip6"}
