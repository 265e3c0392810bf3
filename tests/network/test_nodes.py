"""Whole nodes in the networks that people have. Texts outlive changes of these, though the ways lose packets.

A public bootstrap node relays for a verifier at home. Another verifier is public. In each round a client that
stays, light or full, asks one of the two for a text, and in the middle of it one thing changes. Each text must be
the target's, token by token, and a newcomer must be served afterwards.
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
from tests.network.reader import Reader

pytestmark = [pytest.mark.network, pytest.mark.lab]

PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 96
"""Six seconds of passes of 60 ms."""
SHORT_TOKENS: Final = 4
CHANGE_AFTER_TOKENS: Final = 4
LOSS: Final = 0.01
HUNG_S: Final = 120.0
"""No text of six seconds takes so long, whatever is waited for on the way."""
TRY_S: Final = 8.0
"""A newcomer gives up, and the next one comes."""
AT: Final = "/ip4/0.0.0.0/tcp/4001"
ENGINE: Final = ("--model", TARGET, "--threads", "1", "--dtype", "float32", "--emulate", "60/6@10")


class Change(StrEnum):
    """What happens in a round."""

    RELAY = "relay killed and started again"
    HOME = "verifier moves to another home"
    ADDRESS = "verifier gets another public address"
    CLIENT = "client gets another address"


class Swarm:
    """The nodes and clients of a run."""

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
        return Node.start(self._boot_host, "bootstrap", "--host-maddr", AT)

    def _verifier(self, host: Host) -> Node:
        return Node.start(host, "join", "--role", "verifier", *ENGINE, "--initial-peers", self.boot.maddr)

    def _reader(self, name: str, transport: str, **more: Any) -> Reader:
        options: dict[str, Any] = {"dtype": "float32", "strategy": "plain", "audit": 0.0, "temperature": 0.0}
        peers = [self.boot.maddr]
        return Reader(self._lab.host(name), initial_peers=peers, transport=transport, **options, **more)

    def _next_home(self, kind: RouterKind) -> Router:
        self._homes += 1
        return self._lab.router(f"home{self._homes}", kind)

    def play(self, change: Change) -> None:
        """One round."""
        verifier = self.public if change is Change.ADDRESS else self.home
        text = self.client.begin(PROMPT, verifier=verifier.peer_id, max_new_tokens=TOKENS, timeout_s=HUNG_S)
        self.client.hear(text, within_s=HUNG_S, tokens=CHANGE_AFTER_TOKENS)
        self._change(change, verifier)
        self._find(verifier)
        self.client.hear(text, within_s=HUNG_S)
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

    def _find(self, verifier: Node) -> None:
        """Wait until a newcomer gets its text of a verifier."""
        since_s = time.monotonic()
        options: dict[str, Any] = {"verifier": verifier.peer_id, "max_new_tokens": SHORT_TOKENS, "timeout_s": TRY_S}
        while error := self.newcomer.ask(PROMPT, within_s=HUNG_S, is_newcomer=True, **options).error:
            assert time.monotonic() - since_s < HUNG_S, error
            sys.stderr.write(f"  {time.monotonic() - since_s:.1f} s: {error}\n")


@pytest.mark.parametrize("transport", ["light", "full"])
def test_a_text_is_the_same_whatever_moves_in_the_middle_of_it(lab: Laboratory, transport: str) -> None:
    swarm = Swarm(lab, transport)
    for change in Change:
        swarm.play(change)


def generates(client: Host, address: str) -> bool:
    """True if a fresh light client gets its text."""
    asking = ("generate", "Once", "--max-new-tokens", "2", "--timeout", "12", "--initial-peers", address)
    return client.start(*COMMAND, *asking, log="generate.log").wait(40) == 0


JOIN: Final = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers")


def test_a_verifier_that_nobody_can_reach_says_so_and_is_not_announced(lab: Laboratory) -> None:
    drafter = Node.start(lab.host("drafter"), "join", "--role", "drafter", "--model", "ngram", "--target", TARGET)
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    verifier = Node.start(lab.host("verifier", router=home), *JOIN, drafter.maddr)
    assert (verifier.ready["reach"], verifier.ready["relays"]) == ("nobody", [])
    assert "no relay answers" in verifier.ready["said"]
    assert not generates(lab.host("client"), drafter.maddr)


def test_hosts_with_ipv6_alone_serve_each_other_with_the_defaults(lab: Laboratory) -> None:
    boot, host, client = (lab.host(name, is_v4=False, is_v6=True) for name in ("boot", "verifier", "client"))
    address = Node.start(boot, "bootstrap").maddr
    verifier = Node.start(host, *JOIN, address)
    assert "over IPv6 alone" in verifier.ready["said"]
    assert generates(client, address)
