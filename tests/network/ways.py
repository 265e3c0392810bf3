"""The ways to nodes at home: `python -m tests.network.ways [COUNT ...]` prints them as a table.

For so many public peers, or one, two and four, of which the first two are bootstrap nodes, and each kind of
home router: a verifier and a drafter behind one, a light client with a public address, and a full one that listens
behind a port restricted router. All are 20 ms apart. The first token is that of a short prompt at a client that has
joined.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosine_lab.network.home_router import RouterKind
from cosine_lab.network.laboratory import Laboratory
from tests.network.nodes import TARGET, Node, laboratory
from tests.network.reader_process import ReaderProcess

COUNTS: Final = (1, 2, 4)
RELAYS: Final = 2
PROMPT: Final = "The old lighthouse keeper opened the door and"
ANSWER_S: Final = 60.0
JOIN: Final = ("join", "--threads", "1")
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "verifier": (*JOIN, "--role", "verifier", "--model", TARGET),
    "drafter": ("join", "--role", "drafter", "--model", "ngram", "--target", TARGET),
}
CLIENTS: Final = ("light", "full")


@dataclass(frozen=True, slots=True)
class Way:
    """From a client to a node; without `rtt_s` nobody was reached. A drafter writes no first token."""

    public_peers: int
    kind: RouterKind
    role: str
    client: str
    reach: str
    is_relayed: bool = False
    rtt_s: float = 0.0
    first_s: float = 0.0


def row(ways: list[Way]) -> str:
    """One line of the table: the ways of both clients to one node. Pure."""
    one = ways[0]
    cells = [str(one.public_peers), one.kind.name.lower().replace("_", " "), one.role, one.reach]
    for way in ways:
        cells.append(("relayed" if way.is_relayed else "direct") if way.rtt_s else "not reached")
        cells.append(f"{1e3 * way.rtt_s:.0f} ms" if way.rtt_s else "")
        cells.append(f"{way.first_s:.2f} s" if way.first_s else "")
    return f"| {' | '.join(cells)} |"


COLUMNS: Final = (
    *("public peers", "router", "node", "says"),
    *("light client", "RTT", "first token"),
    *("full client that listens", "RTT", "first token"),
)


def measured(lab: Laboratory, public_peers: int) -> Iterator[list[Way]]:
    """The ways of both clients to each node, in a laboratory of their own."""
    known: list[str] = []
    for number in range(public_peers):
        # The others count as peers that see where somebody comes from.
        arguments = ("bootstrap",) if number < RELAYS else ROLES["drafter"]
        peers = [word for maddr in known for word in ("--initial-peers", maddr)]
        known.append(Node.start(lab.host(f"public{number}"), *arguments, *peers).maddr)
    peers = [word for maddr in known for word in ("--initial-peers", maddr)]
    homes = {(kind, role): lab.router(f"{kind.name}-{role}-home", kind) for kind in RouterKind for role in ROLES}
    nodes = {
        (kind, role): Node.start(lab.host(f"{kind.name}-{role}", router=home), *ROLES[role], *peers)
        for (kind, role), home in homes.items()
    }
    home = lab.router("client-home", RouterKind.PORT_RESTRICTED)
    options: dict[str, Any] = {"initial_peers": known, "strategy": "plain", "audit": 0.0}
    clients = {
        "light": ReaderProcess(lab.host("light-client"), transport="light", **options),
        "full": ReaderProcess(lab.host("full-client", router=home), transport="full", listen=True, **options),
    }
    for (kind, role), node in nodes.items():
        behind = homes[kind, role].public
        yield [way(client, name, node, behind, public_peers, kind, role) for name, client in clients.items()]


def way(
    client: ReaderProcess, name: str, node: Node, home: str, public_peers: int, kind: RouterKind, role: str
) -> Way:
    """The way of a client to a node, whose router has the address `home`."""
    told = client.way_to(node.peer_id, role, within_s=ANSWER_S)
    reach = str(node.events.get("reached", node.ready)["reach"])
    if told["error"]:
        return Way(public_peers, kind, role, name, reach)
    first_s = 0.0
    if role == "verifier":
        text = client.ask(PROMPT, within_s=ANSWER_S, verifier=node.peer_id, max_new_tokens=4)
        first_s = text.found.get("first_s", 0.0)
    # The light client names the relay itself at the other end, the full one the circuit through it.
    is_relayed = "/p2p-circuit" in told["way"] or f"/ip4/{home}/" not in told["way"]
    return Way(public_peers, kind, role, name, reach, is_relayed, told["rtt_s"], first_s)


def main() -> None:
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n")
    for count in map(int, sys.argv[1:] or COUNTS):
        with laboratory() as lab:
            for ways in measured(lab, count):
                sys.stdout.write(row(ways) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
