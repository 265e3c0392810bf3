"""Whole nodes with their defaults in the networks that people have, and clients that ask them for text."""

import json
import sys
import threading
from subprocess import TimeoutExpired
from typing import Any, Final

import pytest

from cosine_lab.network.home_router import RouterKind
from cosine_lab.network.laboratory import Host, Laboratory
from tests.network.peer_process import wait_until

pytestmark = [pytest.mark.network, pytest.mark.lab]
COMMAND: Final = (sys.executable, "-m", "cosine_node")
TARGET: Final = "zoo:target"
FOUND_S: Final = 60.0
"""Above the 10 s of the promise stands the start of a client's process, again and again."""


class Node:
    """A node in a host, with the last event of each name that it told."""

    def __init__(self, host: Host, *arguments: str) -> None:
        self.host = host
        self.events: dict[str, dict[str, Any]] = {}
        self._process = host.start(*COMMAND, *arguments, "--log-format", "json", log="node.log")
        self._is_ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._is_ready.wait(100), (host.home / "node.log").read_text()
        assert "ready" in self.events, (host.home / "node.log").read_text()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self.events[event["event"]] = event
            if event["event"] == "ready":
                self._is_ready.set()
        self._is_ready.set()

    @property
    def ready(self) -> dict[str, Any]:
        return self.events["ready"]


def swarm(lab: Laboratory, verifier: Host, *, is_relay: bool = True) -> tuple[str, Node]:
    """The address of a public node, a bootstrap or else a drafter, and a verifier with the defaults."""
    role = ("bootstrap",) if is_relay else ("join", "--role", "drafter", "--model", "ngram", "--target", TARGET)
    boot = Node(lab.host("boot"), *role)
    address = next(maddr for maddr in boot.ready["maddrs"] if f"/{boot.host.addresses[0]}/tcp/" in maddr)
    joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers", address)
    return address, Node(verifier, *joins)


def generates(client: Host, address: str) -> bool:
    """True if a fresh light client gets its text."""
    asking = ("generate", "Once", "--max-new-tokens", "2", "--timeout", "12", "--initial-peers", address)
    process = client.start(*COMMAND, *asking, log="generate.log")
    try:
        return process.wait(40) == 0
    except TimeoutExpired:
        return False


def test_a_verifier_at_home_serves_with_the_defaults_and_again_from_another_network(lab: Laboratory) -> None:
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    address, verifier = swarm(lab, lab.host("verifier", router=home))
    assert verifier.ready["reach"] == "relayed"
    assert "too few public peers" in verifier.ready["said"]
    client = lab.host("client")
    assert generates(client, address)
    verifier.host.move(router=lab.router("mobile", RouterKind.SYMMETRIC))
    wait_until(lambda: generates(client, address), within_s=FOUND_S)


def test_a_verifier_that_nobody_can_reach_says_so_and_is_not_announced(lab: Laboratory) -> None:
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    address, verifier = swarm(lab, lab.host("verifier", router=home), is_relay=False)
    assert (verifier.ready["reach"], verifier.ready["relays"]) == ("nobody", [])
    assert "no relay answers" in verifier.ready["said"]
    assert not generates(lab.host("client"), address)


def test_a_public_verifier_is_found_at_its_new_address(lab: Laboratory) -> None:
    address, verifier = swarm(lab, lab.host("verifier"))
    assert verifier.ready["reach"] == "direct"
    client = lab.host("client")
    assert generates(client, address)
    verifier.host.move()
    wait_until(lambda: generates(client, address), within_s=FOUND_S)


def test_hosts_with_ipv6_alone_serve_each_other_with_the_defaults(lab: Laboratory) -> None:
    role = ("bootstrap",)
    boot = Node(lab.host("boot", is_v4=False, is_v6=True), *role)
    address = next(maddr for maddr in boot.ready["maddrs"] if f"/{boot.host.addresses[0]}/tcp/" in maddr)
    joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers", address)
    verifier = Node(lab.host("verifier", is_v4=False, is_v6=True), *joins)
    assert "over IPv6 alone" in verifier.ready["said"]
    assert generates(lab.host("client", is_v4=False, is_v6=True), address)
