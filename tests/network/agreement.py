"""Whether emulation tells what real TCP does: `python -m tests.network.agreement` prints both.

A light client asks twice, of a bootstrap node and a verifier with emulated passes that are so far away, in a
laboratory of network namespaces and in virtual time. What the machine itself takes, which virtual time leaves out,
is the least that the laboratory takes longer at any distance. All distances take turns, and of each figure the
fastest round counts: other work on the machine only ever adds, most at 0 ms, where a client never waits. How many
round trips a figure holds is what it grows by from the nearest distance above 0, whatever the machine takes.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cosine_lab.network.home_router import RouterKind
from cosine_lab.network.laboratory import Laboratory
from cosine_node.passes.emulation import Emulation
from cosine_p2p.transport.round_trips import FULL
from cosine_protocol.records import Role
from tests.network.emulated_client import emulated
from tests.network.nodes import TARGET, Node, laboratory
from tests.network.peer_process import PeerProcess

RTTS_MS: Final = (0.0, 20.0, 100.0, 200.0)
PROFILE: Final = "60/6"
KINDS: Final = ("fresh", "there before")
QUIC_CONNECTION: Final = 2
"""Round trips until a full client has a connection over QUIC: one handshake, and the identification."""

Figures = dict[tuple[str, str], float]
"""Seconds, by the kind of client and the name of the figure."""


def in_laboratory(lab: Laboratory, address: str, rtts_ms: Iterable[float], rounds: int) -> dict[float, Figures]:
    """What clients measure that are so far from all nodes, by their distance."""
    clients = {}
    for rtt_ms in rtts_ms:
        host = lab.host(f"client{rtt_ms:g}")
        for other in ("boot", "verifier"):
            lab.way(host.name, other, rtt_s=rtt_ms / 1e3)
        clients[rtt_ms] = (
            host,
            host.start(*(sys.executable, "-m", "tests.network.first_client", TARGET, address), log="client.log"),
        )
    found: dict[float, dict[tuple[str, str], list[float]]] = {rtt_ms: {} for rtt_ms in clients}
    # The first round loads what is loaded once, and does not count.
    for number in range(1 + rounds):
        for rtt_ms, (host, process) in clients.items():
            for kind in KINDS:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{host.home / str(number)}\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, (host.home / "client.log").read_text()
                for name, seconds in json.loads(line).items() if number else ():
                    found[rtt_ms].setdefault((kind, name), []).append(seconds)
    return {rtt_ms: {key: min(runs) for key, runs in own.items()} for rtt_ms, own in found.items()}


def in_virtual_time(rtt_s: float) -> Figures:
    """The same in emulation."""
    curve = Emulation.parse(PROFILE).curve(Role.VERIFIER)
    with tempfile.TemporaryDirectory() as folder:
        return {
            (kind, name): seconds
            for kind in KINDS
            for name, seconds in emulated(Path(folder), rtt_s=rtt_s, curve=curve).items()
        }


def rows(real: Mapping[float, Figures], virtual: Mapping[float, Figures]) -> Iterator[str]:
    """A Markdown table of both, in milliseconds."""
    yield "| client | until | round trip | by TCP | emulated | difference | round trips by TCP | emulated |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    nearest_ms = min(rtt_ms for rtt_ms in real if rtt_ms)
    for key in real[nearest_ms]:
        own_s = min(real[rtt_ms][key] - virtual[rtt_ms][key] for rtt_ms in real)
        for rtt_ms, found in real.items():
            told = [found[key], virtual[rtt_ms][key] + own_s]
            times = " | ".join(f"{1e3 * seconds:.1f}" for seconds in told)
            grown_ms = [1e3 * (each[rtt_ms][key] - each[nearest_ms][key]) for each in (real, virtual)]
            is_farther = rtt_ms > nearest_ms
            counts = " | ".join(f"{ms / (rtt_ms - nearest_ms):.2f}" if is_farther else "" for ms in grown_ms)
            yield f"| {' | '.join(key)} | {rtt_ms:g} | {times} | {told[1] / told[0] - 1:+.1%} | {counts} |"


def openings(lab: Laboratory, rtt_s: float) -> Iterator[str]:
    """A Markdown table of what a full client waits for an echo over its first stream to a peer, and a later one."""
    lab.way(rtt_s=rtt_s)
    relay = PeerProcess.start(lab.host("relay"), is_relay=True)
    initial = [relay.maddr]
    # Before the others, whom it would meet in the DHT.
    client = PeerProcess.start(lab.host("full"), initial_peers=initial, client_mode=True)
    router = lab.router("home", RouterKind.SYMMETRIC)
    peers = {
        "over TCP": PeerProcess.start(lab.host("by-tcp"), initial_peers=initial),
        "over QUIC": PeerProcess.start(lab.host("by-quic"), initial_peers=initial),
        "through a relay": PeerProcess.start(lab.host("at-home", router=router), initial_peers=initial),
    }
    counts = {"over TCP": FULL.connection, "over QUIC": QUIC_CONNECTION, "through a relay": FULL.circuit}
    yield f"| a full client at {1e3 * rtt_s:g} ms, to the first answer | by TCP or QUIC | emulated | difference |"
    yield "|---|--:|--:|--:|"
    for name, peer in peers.items():
        way_s = 2 * rtt_s if name == "through a relay" else rtt_s
        layer = {"over TCP": "/tcp/", "over QUIC": "/quic-v1"}.get(name, "/p2p-circuit")
        maddrs = [maddr for maddr in peer.reach()["maddrs"] if layer in maddr]
        first = client.ask(do="dial", peer=peer.peer_id, maddrs=maddrs, count=1)
        again = client.ask(do="dial", peer=peer.peer_id, count=1)
        for kind, found, count in (("first", first, counts[name]), ("later", again, 0)):
            emulated_s = (count + 1) * way_s
            told = f"{1e3 * found['opened_s']:.1f} | {1e3 * emulated_s:.1f}"
            yield f"| {kind} stream {name} | {told} | {emulated_s / found['opened_s'] - 1:+.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rtts_ms", type=float, nargs="*", default=RTTS_MS)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    rtts_ms = sorted(asked.rtts_ms)
    with laboratory(rtt_s=0.0) as lab:
        boot = Node.start(lab.host("boot"), "bootstrap")
        address = boot.maddr
        joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--emulate", PROFILE)
        Node.start(lab.host("verifier"), *joins, "--initial-peers", address)
        real = in_laboratory(lab, address, rtts_ms, asked.rounds)
        opened = list(openings(lab, max(rtts_ms) / 1e3))
    virtual = {rtt_ms: in_virtual_time(rtt_ms / 1e3) for rtt_ms in rtts_ms}
    sys.stdout.write("\n".join([*rows(real, virtual), "", *opened]) + "\n")


if __name__ == "__main__":
    main()
