"""Nodes that come and go, for long: `python -m tests.network.churn --minutes 60 --seed 1`.

Eight hosts lose one packet in a hundred on the ways between them. A bootstrap node, a verifier and two clients,
one light and one full, stay; on four hosts, three of them behind home routers of the three kinds, a node joins or
leaves every ten seconds: a verifier, a drafter or another bootstrap node, which leaves in order or is killed, now
and then as it starts. The clients ask for one text after the other. Told are texts that were wrong, failed or hung,
and how much memory and how many descriptors each process that stays had in the first and the last quarter.
"""

import argparse
import json
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # no stubs among the dependencies

from tests.e2e.nodes import daemons_of
from tests.e2e.reference import encoded, greedy
from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory
from tests.network.nodes import TARGET, Node, laboratory
from tests.network.reader_process import ReaderProcess

PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 48
TEXTS: Final = 4
"""Each client's texts, again and again: the likeliest, and drawn ones of so many seeds less one."""
LOSS: Final = 0.01
EVERY_S: Final = 10.0
SAMPLE_S: Final = 5.0
HUNG_S: Final = 150.0
"""No text of a few seconds takes so long, whatever is waited for on the way."""
TIMEOUT_S: Final = 120.0
PLACE: Final = ("--threads", "1", "--emulate", "60/6@10")
VERIFIER: Final = ("join", "--role", "verifier", "--model", TARGET, "--dtype", "float32", *PLACE)
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "verifier": VERIFIER,
    "drafter": ("join", "--role", "drafter", "--model", "zoo:draft-literature", "--dtype", "float32", *PLACE),
    "lookup drafter": ("join", "--role", "drafter", "--model", "ngram", "--target", TARGET),
    "bootstrap": ("bootstrap",),
}
HOMES: Final = {f"{kind.name.lower().replace('_', '-')}-home": kind for kind in RouterKind}
COMERS: Final = (*HOMES, "public")
"""The hosts on which nodes come and go."""


@dataclass(frozen=True, slots=True)
class Event:
    """At a time the node of a host leaves, in order or not; where there is none, one of a role joins.

    Where a node is still starting, it happens on the next host, unless it is for those that start, too.
    """

    at_s: float
    host: str
    role: str
    is_killed: bool
    is_early: bool


def planned(*, seed: int, minutes: float) -> list[Event]:
    """The events of a run. Pure."""
    chance = Random(seed)
    return [
        Event(
            number * EVERY_S,
            chance.choice(COMERS),
            chance.choice(list(ROLES)),
            is_killed=chance.random() < 0.5,
            is_early=chance.random() < 0.1,
        )
        for number in range(int(60 * minutes / EVERY_S))
    ]


def options_of(number: int) -> dict[str, Any]:
    """A client's text number so many."""
    seed = number % TEXTS
    return {"temperature": 0.8 if seed else 0.0, "seed": seed, "max_new_tokens": TOKENS}


@dataclass(slots=True)
class Found:
    """What came of the texts, and which events there were. Samples are (seconds, MiB, descriptors), by process."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        return {
            "texts": len(self.seconds),
            "wrong": self.wrong,
            "hung": self.hung,
            "errors": self.errors,
            "median_s": round(median(self.seconds), 2) if self.seconds else None,
            "longest_s": round(max(self.seconds, default=0.0), 2),
            "events": dict(sorted(self.events.items())),
            "stays": {name: quarters(samples) for name, samples in self.samples.items()},
        }


def quarters(samples: Sequence[tuple[float, float, int]]) -> dict[str, list[float]]:
    """The medians of memory and descriptors in the first and the last quarter. Pure."""
    part = max(1, len(samples) // 4)
    first, last = samples[:part], samples[-part:]
    return {
        "mib": [round(median(mib for _, mib, _ in some), 1) for some in (first, last)],
        "descriptors": [round(median(count for *_, count in some)) for some in (first, last)],
    }


class Swarm:
    """The hosts, the nodes that stay and those that are there now."""

    def __init__(self, lab: Laboratory) -> None:
        lab.way(rtt_s=0.02, loss=LOSS)
        self.boot = Node.start(lab.host("boot"), "bootstrap")
        self.steady = Node.start(lab.host("steady"), *VERIFIER, "--initial-peers", self.boot.maddr)
        self.clients = {kind: self._client(lab.host(f"{kind}-client"), kind) for kind in ("light", "full")}
        self._hosts: dict[str, Host] = {
            name: lab.host(name, router=lab.router(f"{name}-router", kind)) for name, kind in HOMES.items()
        }
        self._hosts["public"] = lab.host("public")
        self._there: dict[str, Node] = {}

    def _client(self, host: Host, kind: str) -> ReaderProcess:
        return ReaderProcess(host, transport=kind, initial_peers=[self.boot.maddr], dtype="float32")

    def carry_out(self, event: Event) -> str:
        """Let a node come or go; what happened, in words."""
        at = COMERS.index(event.host)
        for name in (*COMERS[at:], *COMERS[:at]):
            node = self._there.get(name)
            if node is None:
                self._there[name] = Node(self._hosts[name], *ROLES[event.role], "--initial-peers", self.boot.maddr)
                return f"{name}: a {event.role} joins"
            # Where a start takes longer than the time between events, hardly a node would ever be ready.
            if node.is_ready or event.is_early:
                break
        else:
            return "all hosts: nobody is ready yet, and all stay"
        was_ready = self._there.pop(name).is_ready
        is_killed = event.is_killed or not was_ready
        node.process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
        # In order it takes a moment, and the next one that joins there waits for its identity.
        threading.Thread(target=node.process.wait, daemon=True).start()
        return f"{name}: {'killed' if is_killed else 'leaves'}{'' if was_ready else ' before it is ready'}"

    def staying(self) -> dict[str, int]:
        """The processes that stay, by name."""
        own = {
            "bootstrap": self.boot.process.pid,
            "verifier": self.steady.process.pid,
            **{f"{kind} client": client.process.pid for kind, client in self.clients.items()},
        }
        daemons = {f"p2pd of {name}": pid for name, parent in own.items() for pid in daemons_of(parent)[:1]}
        return own | daemons

    def texts(self) -> list[tuple[int, ...]]:
        """The texts, while nothing happens; the likeliest is compared with transformers' own."""
        client = self.clients["light"]
        told = [client.ask(PROMPT, within_s=HUNG_S, strategy="plain", **options_of(n)) for n in range(TEXTS)]
        assert not any(text.error for text in told), told
        assert tuple(told[0].token_ids) == greedy(encoded(PROMPT), TOKENS)
        return [tuple(text.token_ids) for text in told]


def ask_on(
    name: str, client: ReaderProcess, expected: Sequence[tuple[int, ...]], over: threading.Event, found: Found
) -> None:
    """Ask for a client's texts until it is over."""
    start_s, number = time.monotonic(), 0
    while not over.is_set():
        began_s, number = time.monotonic(), number + 1

        def told(what: str, began_s: float = began_s) -> str:
            return f"{began_s - start_s:.0f} s, {name} client: {what}"

        try:
            text = client.ask(PROMPT, within_s=HUNG_S, timeout_s=TIMEOUT_S, **options_of(number))
        except queue.Empty:
            found.hung.append(told(f"nothing came for {HUNG_S:g} s"))
            return
        if text.error:
            found.errors.append(told(text.error))
            time.sleep(1.0)
            continue
        found.seconds.append(time.monotonic() - began_s)
        if tuple(text.token_ids) != expected[number % TEXTS]:
            found.wrong.append(told(f"another text of seed {number % TEXTS}, tried {text.found['tried']}"))


def sample(swarm: Swarm, over: threading.Event, found: Found) -> None:
    """Measure the processes that stay until it is over."""
    began_s = time.monotonic()
    while not over.wait(SAMPLE_S):
        for name, pid in swarm.staying().items():
            process = psutil.Process(pid)
            mib = process.memory_info().rss / (1 << 20)
            found.samples.setdefault(name, []).append((time.monotonic() - began_s, mib, process.num_fds()))


def play(lab: Laboratory, plan: Sequence[Event], *, minutes: float) -> Found:
    """Carry out a plan under the clients' load."""
    swarm, found, over = Swarm(lab), Found(), threading.Event()
    expected = swarm.texts()
    working = [threading.Thread(target=sample, args=(swarm, over, found))]
    for name, client in swarm.clients.items():
        working.append(threading.Thread(target=ask_on, args=(name, client, expected, over, found)))
    for thread in working:
        thread.start()
    began_s = time.monotonic()
    try:
        for event in plan:
            time.sleep(max(0.0, began_s + event.at_s - time.monotonic()))
            what = swarm.carry_out(event)
            found.events[what.partition(": ")[2]] += 1
            sys.stderr.write(f"{event.at_s:.0f} s: {what}; {len(found.seconds)} texts\n")
        time.sleep(max(0.0, began_s + 60 * minutes - time.monotonic()))
    finally:
        over.set()
        for thread in working:
            thread.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="a folder for the logs of all hosts")
    asked = parser.parse_args()
    plan = planned(seed=asked.seed, minutes=asked.minutes)
    with laboratory(asked.logs) as lab:
        found = play(lab, plan, minutes=asked.minutes)
    sys.stdout.write(json.dumps({"minutes": asked.minutes, "seed": asked.seed} | found.report(), indent=1) + "\n")


if __name__ == "__main__":
    main()
