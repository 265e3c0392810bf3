"""Changes of networks, one after the other: `python -m tests.network.rounds --rounds 20 --seed 1`.

A public bootstrap node relays for a verifier at home; another verifier is public. In each round a client that
stays, light or full, asks one of the two for a text, and in the middle of it one thing changes: the relay is killed
and started again, the verifier moves to another home or gets another public address, or the client gets one. Told
are the seconds until a newcomer is served by that verifier (after a relay's restart from when it is ready again),
and those for which the text stood still. Each text must be the target's, token by token, whatever it went through.
"""

import argparse
import json
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from tests.e2e.reference import encoded, greedy
from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory, Router
from tests.network.nodes import TARGET, Node, laboratory
from tests.network.reader_process import ReaderProcess

PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 96
"""Six seconds of passes of 60 ms."""
SHORT_TOKENS: Final = 4
CHANGE_AFTER_TOKENS: Final = (4, 48)
RELAY_DOWN_S: Final = (0.0, 6.0)
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


def planned(*, seed: int, rounds: int) -> list[Round]:
    """The rounds of a run: each change as often as others, at moments that the seed draws. Pure."""
    chance, changes = Random(seed), list[Change]()
    while len(changes) < rounds:
        changes += chance.sample(list(Change), len(Change))
    return [
        Round(
            change,
            chance.randint(*CHANGE_AFTER_TOKENS),
            chance.choice(("light", "full")),
            chance.choice(list(RouterKind)),
            chance.uniform(*RELAY_DOWN_S),
        )
        for change in changes[:rounds]
    ]


@dataclass(slots=True)
class Found:
    """What came of a round. Without an `error` the text was whole and the target's."""

    change: Change
    transport: str
    found_s: float = 0.0
    still_s: float = 0.0
    newcomers: int = 0
    error: str = ""
    tried: list[str] = field(default_factory=list)


def report(founds: Sequence[Found]) -> dict[str, Any]:
    """The median and the worst of each change, and what went wrong. Pure."""
    table = {}
    for change in Change:
        of_it = [found for found in founds if found.change is change]
        if of_it:
            table[change.value] = {
                "rounds": len(of_it),
                "found_s": _spread([found.found_s for found in of_it]),
                "text_stood_still_s": _spread([found.still_s for found in of_it]),
            }
    wrong = [f"{found.change}, {found.transport}: {found.error}" for found in founds if found.error]
    return {"rounds": len(founds), "wrong_or_lost": wrong, "changes": table}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(seconds), 1), "worst": round(max(seconds), 1)}


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
        found = Found(planned.change, planned.transport)
        verifier = self.public if planned.change is Change.ADDRESS else self.home
        client = self.clients[planned.transport]
        try:
            text = client.begin(PROMPT, verifier=verifier.peer_id, max_new_tokens=TOKENS, timeout_s=HUNG_S)
            client.hear(text, within_s=HUNG_S, tokens=planned.after_tokens)
            changed_s = self._change(planned, verifier, client)
            found.found_s, found.newcomers = self._until_found(verifier, changed_s)
            client.hear(text, within_s=HUNG_S)
            if found.found_s >= HUNG_S:
                found.error = "no newcomer was served"
                return found
        except queue.Empty:
            found.error = "hung"
            return found
        found.still_s, found.tried = text.found.get("silence_s", 0.0), text.found.get("tried", [])
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

    def _until_found(self, verifier: Node, since_s: float) -> tuple[float, int]:
        """The seconds until a newcomer has its text, and how many came."""
        number = 0
        while time.monotonic() - since_s < HUNG_S:
            number += 1
            short = self.newcomer.ask(
                PROMPT,
                within_s=HUNG_S,
                verifier=verifier.peer_id,
                max_new_tokens=SHORT_TOKENS,
                timeout_s=TRY_S,
                is_newcomer=True,
            )
            if not short.error:
                break
            sys.stderr.write(f"  {time.monotonic() - since_s:.1f} s: {short.error}\n")
        return time.monotonic() - since_s, number


def _client(kind: str) -> dict[str, Any]:
    return {"transport": kind, "dtype": "float32", "strategy": "plain", "audit": 0.0, "temperature": 0.0}


def play(lab: Laboratory, plan: Sequence[Round]) -> Iterator[Found]:
    """The rounds of a plan, each when it is over."""
    swarm = Swarm(lab)
    for one in plan:
        yield swarm.play(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="a folder for the logs of all hosts")
    asked = parser.parse_args()
    founds = []
    with laboratory(asked.logs) as lab:
        for one in play(lab, planned(seed=asked.seed, rounds=asked.rounds)):
            founds.append(one)
            sys.stderr.write(
                f"{len(founds)}. {one.change}, {one.transport}: found after {one.found_s:.1f} s by newcomer "
                f"{one.newcomers}, text still for {one.still_s:.1f} s {one.error} {one.tried}\n"
            )
    sys.stdout.write(json.dumps({"seed": asked.seed} | report(founds), indent=1) + "\n")


if __name__ == "__main__":
    main()
