"""Whole nodes with their defaults in the networks that people have, and clients that ask them for text."""

from subprocess import TimeoutExpired
from typing import Final

import pytest

from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory
from tests.network.nodes import COMMAND, TARGET, Node
from tests.network.peer_process import wait_until

pytestmark = [pytest.mark.network, pytest.mark.lab]
FOUND_S: Final = 60.0
"""Above the 10 s of the promise stands the start of a client's process, again and again."""


def swarm(lab: Laboratory, verifier: Host, *, is_relay: bool = True) -> tuple[str, Node]:
    """The address of a public node, a bootstrap or else a drafter, and a verifier with the defaults."""
    role = ("bootstrap",) if is_relay else ("join", "--role", "drafter", "--model", "ngram", "--target", TARGET)
    boot = Node.start(lab.host("boot"), *role)
    address = boot.maddr
    joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers", address)
    return address, Node.start(verifier, *joins)


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
    address = Node.start(lab.host("boot", is_v4=False, is_v6=True), "bootstrap").maddr
    joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers", address)
    verifier = Node.start(lab.host("verifier", is_v4=False, is_v6=True), *joins)
    assert "over IPv6 alone" in verifier.ready["said"]
    assert generates(lab.host("client", is_v4=False, is_v6=True), address)
