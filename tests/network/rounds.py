"""Changes of networks, one after the other.

A public bootstrap node relays for a verifier at home; another verifier is public. In each round a client that
stays, light or full, asks one of the two for a text, and in the middle of it one thing changes: the relay is killed
and started again, the verifier moves to another home or gets another public address, or the client gets one. Each
text must be the target's, token by token, whatever it went through, and a newcomer must be served afterwards.
"""

import queue
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tests.e2e.reference import encoded, greedy
from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory, Router
from tests.network.nodes import TARGET, Node
from tests.network.reader_process import ReaderProcess

PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 96
"""Six seconds of passes of 60 ms."""
SHORT_TOKENS: Final = 4
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


@dataclass(frozen=True, slots=True)
class Round:
    """One change, its moment, and the client's transport."""

    change: Change
    after_tokens: int
    transport: str
    kind: RouterKind
    down_s: float


@dataclass(slots=True)
class Found:
    """What came of a round. Without an `error` the text was whole and the target's."""

    change: Change
    error: str = ""


class Swarm:
    """The nodes and clients of a run."""

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab
        self._homes = 0
        self._boot_host = lab.host("boot")
        self.boot = self._start_boot()
        self.home = self._verifier(lab.host("home-verifier", router=self._next_home(RouterKind.PORT_RESTRICTED)))
        self.public = self._verifier(lab.host("public-verifier"))
        self.newcomer = ReaderProcess(
            lab.host("newcomer"), join_patience_s=0.0, initial_peers=[self.boot.maddr], **_client("light")
        )
        self.clients = {
            kind: ReaderProcess(lab.host(f"{kind}-client"), initial_peers=[self.boot.maddr], **_client(kind))
            for kind in ("light", "full")
        }
        self._expected = greedy(encoded(PROMPT), TOKENS)

    def _start_boot(self) -> Node:
        return Node.start(self._boot_host, "bootstrap", "--host-maddr", AT)

    def _verifier(self, host: Host) -> Node:
        return Node.start(host, "join", "--role", "verifier", *ENGINE, "--initial-peers", self.boot.maddr)

    def _next_home(self, kind: RouterKind) -> Router:
        self._homes += 1
        return self._lab.router(f"home{self._homes}", kind)

    def play(self, planned: Round) -> Found:
        """One round."""
        found = Found(planned.change)
        verifier = self.public if planned.change is Change.ADDRESS else self.home
        client = self.clients[planned.transport]
        try:
            text = client.begin(PROMPT, verifier=verifier.peer_id, max_new_tokens=TOKENS, timeout_s=HUNG_S)
            client.hear(text, within_s=HUNG_S, tokens=planned.after_tokens)
            changed_s = self._change(planned, verifier, client)
            is_found = self._finds(verifier, changed_s)
            client.hear(text, within_s=HUNG_S)
            if not is_found:
                found.error = "no newcomer was served"
                return found
        except queue.Empty:
            found.error = "hung"
            return found
        wrong = "" if tuple(text.token_ids) == self._expected else "another text"
        found.error = text.error or wrong
        return found

    def _change(self, planned: Round, verifier: Node, client: ReaderProcess) -> float:
        """Let it happen; the time from which seconds count."""
        match planned.change:
            case Change.RELAY:
                self.boot.kill()
                time.sleep(planned.down_s)
                self.boot = self._start_boot()
            case Change.HOME:
                verifier.host.move(router=self._next_home(planned.kind))
            case Change.ADDRESS:
                verifier.host.move()
            case Change.CLIENT:
                client.host.move()
        return time.monotonic()

    def _finds(self, verifier: Node, since_s: float) -> bool:
        """True if a newcomer gets its text of a verifier in time."""
        while time.monotonic() - since_s < HUNG_S:
            short = self.newcomer.ask(
                PROMPT,
                within_s=HUNG_S,
                verifier=verifier.peer_id,
                max_new_tokens=SHORT_TOKENS,
                timeout_s=TRY_S,
                is_newcomer=True,
            )
            if not short.error:
                return True
            sys.stderr.write(f"  {time.monotonic() - since_s:.1f} s: {short.error}\n")
        return False


def _client(kind: str) -> dict[str, Any]:
    return {"transport": kind, "dtype": "float32", "strategy": "plain", "audit": 0.0, "temperature": 0.0}


def play(lab: Laboratory, plan: Sequence[Round]) -> Iterator[Found]:
    """The rounds of a plan, each when it is over."""
    swarm = Swarm(lab)
    for one in plan:
        yield swarm.play(one)
