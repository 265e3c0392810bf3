"""Nodes in emulated networks. Texts survive changes of the network, although packets are lost.

A public bootstrap node relays for a verifier at home; another verifier is public. In each round a client, light or
full, asks one of the two for a text, and in the middle of it one thing changes. Each text must be the target's,
token by token, and a new client must be served afterwards.
"""

import sys
import time
from enum import StrEnum
from typing import Any, Final

import pytest

from tests.e2e.reference import encoded, greedy
from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory, Router
from tests.network.nodes import COMMAND, TARGET, Node
from tests.network.reader import Reader, Text

pytestmark = [pytest.mark.network, pytest.mark.lab]

PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 96
"""Six seconds of passes of 60 ms."""
SHORT_TOKENS: Final = 4
CHANGE_AFTER_TOKENS: Final = 4
LOSS: Final = 0.01
CLOSED_S: Final = 310.0
"""Longer than peers keep a connection, and a record lives."""
AWAKE_S: Final = 30.0
HUNG_S: Final = 120.0
"""Bounds a text of six seconds, with all timeouts on the way."""
TRY_S: Final = 8.0
"""The timeout of a new client, after which the next one tries."""
AT: Final = "/ip4/0.0.0.0/tcp/4001"
ENGINE: Final = ("--model", TARGET, "--threads", "1", "--dtype", "float32", "--emulate", "60/6@10")


class Change(StrEnum):
    RELAY = "relay killed and started again"
    HOME = "verifier moves to another home"
    ADDRESS = "verifier gets another public address"
    CLIENT = "client gets another address"


class Swarm:
    def __init__(self, lab: Laboratory, transport: str) -> None:
        lab.way(rtt_s=0.02, loss=LOSS)
        self._lab = lab
        self._homes = 0
        self._boot_host = lab.host("boot")
        self.boot = self._start_boot()
        self.home = self._verifier(lab.host("home-verifier", router=self._next_home(RouterKind.PORT_RESTRICTED)))
        self.public = self._verifier(lab.host("public-verifier"))
        self.newcomer = self._reader("newcomer", "light", join_patience_s=0.0)
        self.client = self._reader("client", transport)

    def _start_boot(self) -> Node:
        return Node(self._boot_host, "bootstrap", "--host-maddr", AT)

    def _verifier(self, host: Host) -> Node:
        return Node(host, "join", "--role", "verifier", *ENGINE, "--initial-peers", self.boot.maddr)

    def _reader(self, name: str, transport: str, **more: Any) -> Reader:
        options: dict[str, Any] = {"dtype": "float32", "strategy": "plain", "audit": 0.0, "temperature": 0.0}
        peers = [self.boot.maddr]
        return Reader(self._lab.host(name), initial_peers=peers, transport=transport, **options, **more)

    def _next_home(self, kind: RouterKind) -> Router:
        self._homes += 1
        return self._lab.router(f"home{self._homes}", kind)

    def play(self, change: Change) -> None:
        verifier = self.public if change is Change.ADDRESS else self.home
        self.client.say(prompt=PROMPT, verifier=verifier.peer_id, max_new_tokens=TOKENS, timeout_s=HUNG_S)
        text = self.client.follow(Text(), within_s=HUNG_S, tokens=CHANGE_AFTER_TOKENS)
        self._change(change, verifier)
        self.find(verifier)
        self.client.follow(text, within_s=HUNG_S)
        assert (text.error, tuple(text.token_ids)) == ("", greedy(encoded(PROMPT), TOKENS)), change

    def _change(self, change: Change, verifier: Node) -> None:
        match change:
            case Change.RELAY:
                self.boot.kill()
                time.sleep(1.0)
                self.boot = self._start_boot()
            case Change.HOME:
                verifier.host.move(router=self._next_home(RouterKind.SYMMETRIC))
            case Change.ADDRESS:
                verifier.host.move()
            case Change.CLIENT:
                self.client.host.move()

    def find(self, verifier: Node) -> None:
        """Wait until a new client gets its text from a verifier."""
        since_s, error = time.monotonic(), None
        while error != "":
            assert time.monotonic() - since_s < HUNG_S, error
            options = {"verifier": verifier.peer_id, "max_new_tokens": SHORT_TOKENS, "timeout_s": TRY_S}
            self.newcomer.say(prompt=PROMPT, is_newcomer=True, **options)
            error = self.newcomer.follow(Text(), within_s=HUNG_S).error


@pytest.mark.parametrize("transport", ["light", "full"])
def test_a_text_is_the_same_whatever_moves_in_the_middle_of_it(lab: Laboratory, transport: str) -> None:
    swarm = Swarm(lab, transport)
    for change in Change:
        swarm.play(change)


def test_nodes_whose_lids_were_closed_are_found_and_answer_within_half_a_minute(lab: Laboratory) -> None:
    swarm = Swarm(lab, "light")
    verifiers = (swarm.home, swarm.public)
    for verifier in verifiers:
        verifier.host.suspend()
    time.sleep(CLOSED_S)
    for verifier in verifiers:
        verifier.host.wake()
    opened_s = time.monotonic()
    for verifier in verifiers:
        swarm.find(verifier)
        took_s = time.monotonic() - opened_s
        sys.stderr.write(f"{verifier.host.name} answers {took_s:.1f} s after its lid was opened\n")
        assert took_s < AWAKE_S


def generates(client: Host, address: str) -> bool:
    """True if a fresh light client gets its text."""
    asking = ("generate", "Once", "--max-new-tokens", "2", "--timeout", "12", "--initial-peers", address)
    return client.start(*COMMAND, *asking, log="generate.log").wait(40) == 0


JOIN: Final = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers")


def test_a_verifier_that_nobody_can_reach_says_so_and_is_not_announced(lab: Laboratory) -> None:
    drafter = Node(lab.host("drafter"), "join", "--role", "drafter", "--model", "ngram", "--target", TARGET)
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    verifier = Node(lab.host("verifier", router=home), *JOIN, drafter.maddr)
    assert (verifier.ready["reach"], verifier.ready["relays"]) == ("nobody", [])
    assert "no relay answers" in verifier.ready["said"]
    assert not generates(lab.host("client"), drafter.maddr)


def test_hosts_with_ipv6_alone_serve_each_other_with_the_defaults(lab: Laboratory) -> None:
    boot, host, client = (lab.host(name, is_v4=False, is_v6=True) for name in ("boot", "verifier", "client"))
    address = Node(boot, "bootstrap").maddr
    verifier = Node(host, *JOIN, address)
    assert "over IPv6 alone" in verifier.ready["said"]
    assert generates(client, address)
