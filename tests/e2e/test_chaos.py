"""Overlapping faults of all nodes: no text of a client that knows two addresses is wrong, fails or hangs.

Two verifiers, a drafter and a bootstrap node serve clients that generate texts repeatedly. Meanwhile nodes and
their daemons are killed, stopped and restarted by a plan that a seed determines. An event that leaves a client
without a known address, or all clients without a verifier, is skipped.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from queue import Empty
from random import Random
from typing import Final

import psutil
import pytest

from cosine_p2p import AsyncClient
from cosine_p2p.storage.identity_file import load_identity
from cosine_protocol.errors import CosineError
from tests.e2e.conftest import EMULATED
from tests.e2e.nodes import HOST, Node, close_all, daemons_of, free_port
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

NETWORK: Final = "chaos"
MINUTES: Final = 2.0
NEW_TOKENS: Final = 48
VERIFIERS: Final = frozenset({"first", "second"})
_JOIN: Final = ("join", "--threads", "1", "--dtype", "float32", "--emulate", EMULATED)
ARGUMENTS: Final = {
    "boot": ("bootstrap",),
    **dict.fromkeys(sorted(VERIFIERS), (*_JOIN, "--role", "verifier", "--model", "zoo:target")),
    "drafter": (*_JOIN, "--role", "drafter", "--model", "zoo:draft-literature"),
}
KNOWN: Final = (("boot", "first"), ("boot", "second"), ("first", "second"))
"""The nodes whose addresses each client knows."""
VICTIMS: Final = (*ARGUMENTS, "boot", *sorted(VERIFIERS))
"""Drafters are rarer, since no text depends on them."""
FIRST_S: Final = 5.0
PAUSE_S: Final = (2.0, 10.0)
"""Pause between events, shorter than a restart, so that faults overlap."""
STOPPED_S: Final = (1.0, 12.0)
"""A peer may be silent for 4 s: shorter and longer."""
DOWN_S: Final = (0.0, 8.0)
SETTLED_S: Final = 10.0
"""Time after which a ready verifier was found by everybody."""
HUNG_S: Final = 120.0
"""Far longer than any text, including all waits."""


class Deed(StrEnum):
    KILL = "kill -9"
    STOP = "SIGSTOP"
    RESTART = "SIGTERM"
    KILL_DAEMON = "kill -9 of its p2pd"
    STOP_DAEMON = "SIGSTOP of its p2pd"


SIGNALS: Final = {
    Deed.KILL: signal.SIGKILL,
    Deed.STOP: signal.SIGSTOP,
    Deed.RESTART: signal.SIGTERM,
    Deed.KILL_DAEMON: signal.SIGKILL,
    Deed.STOP_DAEMON: signal.SIGSTOP,
}


@dataclass(frozen=True, slots=True)
class Event:
    """A deed at a time; the victim continues or restarts after `lasts_s`."""

    at_s: float
    deed: Deed
    victim: str
    lasts_s: float


def planned(*, seed: int) -> Iterator[Event]:
    chance, now_s = Random(seed), FIRST_S
    while now_s < 60 * MINUTES:
        deed = chance.choice(tuple(Deed))
        span_s = STOPPED_S if deed in (Deed.STOP, Deed.STOP_DAEMON) else DOWN_S
        yield Event(now_s, deed, chance.choice(VICTIMS), chance.uniform(*span_s))
        now_s += chance.uniform(*PAUSE_S)


@dataclass(slots=True)
class Scene:
    """The nodes by name. `whole_s` is the time since when each is whole, `faults` what went wrong for a client."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in ARGUMENTS})
    nodes: dict[str, Node] = field(default_factory=dict)
    whole_s: dict[str, float] = field(default_factory=dict)
    starts: int = 0
    texts: int = 0
    faults: list[str] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def maddr(self, name: str) -> str:
        return f"{self._host(name)}/p2p/{load_identity(self.folder / f'{name}.key').peer_id}"

    def _host(self, name: str) -> str:
        return HOST.replace("/tcp/0", f"/tcp/{self.ports[name]}")

    def begin(self, name: str) -> None:
        self.starts += 1
        arguments = [*ARGUMENTS[name], "--network", NETWORK, "--identity", str(self.folder / f"{name}.key")]
        # The bootstrap node may be gone when another one restarts.
        for peer in {"boot", "second" if name == "first" else "first"} - {name}:
            if peer in self.nodes:
                arguments += ["--initial-peers", self.maddr(peer)]
        self.nodes[name] = Node.start(f"{name}-{self.starts}", arguments, self.folder, host=self._host(name))

    def note_ready(self, name: str) -> None:
        self.nodes[name].wait_ready()
        self.note_back(name)

    def note_back(self, name: str) -> None:
        """Count a node as whole, a verifier once it has settled."""
        self.whole_s[name] = time.monotonic() + SETTLED_S * (name in VERIFIERS)

    def may_be(self, event: Event) -> bool:
        """True if the victim is whole, and everybody has a verifier and an address without it."""
        whole = {name for name, since_s in self.whole_s.items() if since_s <= time.monotonic()}
        left = whole - {event.victim}
        return event.victim in whole and bool(left & VERIFIERS) and all(left & {*known} for known in KNOWN)

    async def carry_out(self, event: Event) -> None:
        node = self.nodes[event.victim]
        is_daemon = event.deed in (Deed.KILL_DAEMON, Deed.STOP_DAEMON)
        pids = daemons_of(node.process.pid) if is_daemon else [node.process.pid]
        del self.whole_s[event.victim]
        for pid in pids:
            signalled(pid, SIGNALS[event.deed])
        if event.deed in (Deed.KILL, Deed.RESTART):
            await asyncio.to_thread(node.process.wait)
            await asyncio.sleep(event.lasts_s)
            self.begin(event.victim)
            await asyncio.to_thread(self.note_ready, event.victim)
            return
        if event.deed is not Deed.KILL_DAEMON:
            await asyncio.sleep(event.lasts_s)
            for pid in pids:
                signalled(pid, signal.SIGCONT)
        self.note_back(event.victim)

    async def ask_on(self, known: Sequence[str]) -> None:
        """Generate a text repeatedly, with a new client after each fault."""
        while not self.is_over.is_set():
            try:
                maddrs = [self.maddr(name) for name in known]
                async with AsyncClient(maddrs, memory=False, network=NETWORK, dtype="float32") as client:
                    while not self.is_over.is_set():
                        async with asyncio.timeout(HUNG_S):
                            done = await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
                        self.texts += 1
                        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
            except (CosineError, TimeoutError, AssertionError) as error:
                self.faults.append(f"after {self.texts} texts of all: {type(error).__name__}: {error}")
                sys.stderr.write(f"{self.faults[-1]}\n")
                await asyncio.sleep(1.0)


@contextmanager
def scene_in(folder: Path) -> Iterator[Scene]:
    """The nodes, all ready and settled."""
    scene = Scene(folder)
    try:
        for names in (["boot"], [name for name in ARGUMENTS if name != "boot"]):
            for name in names:
                scene.begin(name)
            for name in names:
                scene.note_ready(name)
        scene.whole_s = dict.fromkeys(ARGUMENTS, time.monotonic())
        yield scene
    finally:
        for node in scene.nodes.values():
            for pid in (node.process.pid, *daemons_of(node.process.pid)):
                signalled(pid, signal.SIGCONT)
        close_all(list(scene.nodes.values()))


def signalled(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    if psutil.pid_exists(pid):
        os.kill(pid, number)


async def play(scene: Scene) -> set[str]:
    """Return the victims."""
    asking = [asyncio.ensure_future(scene.ask_on(known)) for known in KNOWN]
    began_s, deeds, victims = time.monotonic(), list[asyncio.Task[None]](), set[str]()
    for event in planned(seed=0):
        await asyncio.sleep(max(0.0, began_s + event.at_s - time.monotonic()))
        if scene.may_be(event):
            sys.stderr.write(f"{event.at_s:.1f} s: {event.victim}: {event.deed} for {event.lasts_s:.1f} s\n")
            deeds.append(asyncio.create_task(scene.carry_out(event)))
            victims.add(event.victim)
    for deed in deeds:
        # On a busy machine a node may start too late, which loses no text.
        with suppress(Empty):
            await deed
    scene.is_over.set()
    await asyncio.gather(*asking)
    return victims


@pytest.mark.soak
def test_every_text_is_right_whatever_dies_or_stops(tmp_path: Path) -> None:
    with scene_in(tmp_path) as scene:
        victims = asyncio.run(play(scene))
    assert scene.faults == []
    assert scene.texts > 0 and victims & VERIFIERS and "boot" in victims
