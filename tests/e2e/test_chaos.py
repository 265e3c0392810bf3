"""Overlapping faults of all nodes: no text of a client that knows two addresses is wrong, fails or hangs.

Two verifiers, two drafters and a bootstrap node serve four clients that generate texts repeatedly, each with its
seed. Meanwhile nodes and their daemons are killed, stopped and restarted, and clients leave and join again or lose
their daemons. A seed determines the plan. An event that leaves a client without a known address, or all clients
without a verifier, is skipped.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
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
from cosine_p2p.request.options import GenerationOptions
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
DRAFTERS: Final = {"draft-literature": "zoo:draft-literature", "ngram": "ngram"}
_JOIN: Final = ("join", "--threads", "1", "--dtype", "float32", "--emulate", EMULATED)
ARGUMENTS: Final = {
    "boot": ("bootstrap",),
    **dict.fromkeys(VERIFIERS, (*_JOIN, "--role", "verifier", "--model", "zoo:target")),
    **{name: (*_JOIN, "--role", "drafter", "--model", model) for name, model in DRAFTERS.items()},
}
NODES: Final = ("boot", *sorted(VERIFIERS), *DRAFTERS)
KNOWN: Final = (("boot", "first"), ("boot", "second"), ("boot", "first"), ("first", "second"))
"""The nodes whose addresses each client knows."""
CLIENTS: Final = tuple(f"client-{number}" for number in range(len(KNOWN)))

VICTIMS: Final = (*NODES, *NODES, *CLIENTS, *("boot",) * 6)
"""The bootstrap node is more frequent, since most events for it are left out."""
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
    LEAVE = "leaves and joins anew"


SIGNALS: Final = {
    Deed.KILL: signal.SIGKILL,
    Deed.STOP: signal.SIGSTOP,
    Deed.RESTART: signal.SIGTERM,
    Deed.KILL_DAEMON: signal.SIGKILL,
    Deed.STOP_DAEMON: signal.SIGSTOP,
}
"""The faults of nodes."""
# With its own daemon stopped a client reaches nobody.
CLIENT_DEEDS: Final = (Deed.LEAVE, Deed.KILL_DAEMON)


@dataclass(frozen=True, slots=True)
class Event:
    """A deed at a time; the victim continues or restarts after `lasts_s`."""

    at_s: float
    deed: Deed
    victim: str
    lasts_s: float


def planned(*, seed: int, minutes: float) -> list[Event]:
    chance, now_s, events = Random(seed), FIRST_S, list[Event]()
    while now_s < 60 * minutes:
        victim = chance.choice(VICTIMS)
        deed = chance.choice(tuple(SIGNALS) if victim in NODES else CLIENT_DEEDS)
        span_s = STOPPED_S if deed in (Deed.STOP, Deed.STOP_DAEMON) else DOWN_S
        events.append(Event(now_s, deed, victim, chance.uniform(*span_s)))
        now_s += chance.uniform(*PAUSE_S)
    return events


def may_be(event: Event, whole: Collection[str]) -> bool:
    """True if everybody still has a verifier and an address without the victim. Pure."""
    if event.victim in CLIENTS:
        return True
    left = set(whole) - {event.victim}
    return bool(left & VERIFIERS) and all(left.intersection(known) for known in KNOWN)


@dataclass(slots=True)
class Found:
    """The number of texts and events, and the faults."""

    texts: int = 0
    events: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """The nodes by name; `whole_s` is the time since when each is whole."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in NODES})
    nodes: dict[str, Node] = field(default_factory=dict)
    whole_s: dict[str, float] = field(default_factory=dict)
    starts: int = 0

    def host(self, name: str) -> str:
        return HOST.replace("/tcp/0", f"/tcp/{self.ports[name]}")

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def maddr(self, name: str) -> str:
        return f"{self.host(name)}/p2p/{load_identity(self.key(name)).peer_id}"

    def begin(self, name: str) -> None:
        self.starts += 1
        arguments = [*ARGUMENTS[name], "--network", NETWORK, "--identity", str(self.key(name))]
        # The bootstrap node may be gone when another one restarts.
        for peer in {"boot", "second" if name == "first" else "first"} - {name}:
            if peer in self.nodes:
                arguments += ["--initial-peers", self.maddr(peer)]
        self.nodes[name] = Node.start(f"{name}-{self.starts}", arguments, self.folder, host=self.host(name))

    def note_ready(self, name: str) -> None:
        self.nodes[name].wait_ready()
        self.note_back(name)

    def note_back(self, name: str) -> None:
        """Count a node as whole, a verifier once it has settled."""
        self.whole_s[name] = time.monotonic() + SETTLED_S * (name in VERIFIERS)

    @property
    def whole(self) -> set[str]:
        """The nodes that have been there for long enough."""
        return {name for name, since_s in self.whole_s.items() if since_s <= time.monotonic()}

    def pids_of(self, victim: str, deed: Deed) -> list[int]:
        if victim in CLIENTS:
            daemons = sorted(daemons_of(os.getpid()))
            return daemons[CLIENTS.index(victim) :][:1]
        pid = self.nodes[victim].process.pid
        return daemons_of(pid) if deed in (Deed.KILL_DAEMON, Deed.STOP_DAEMON) else [pid]


@contextmanager
def scene_in(folder: Path) -> Iterator[Scene]:
    """The nodes, all ready and settled."""
    scene = Scene(folder)
    try:
        for names in (NODES[:1], NODES[1:]):
            for name in names:
                scene.begin(name)
            for name in names:
                scene.note_ready(name)
        scene.whole_s = dict.fromkeys(NODES, time.monotonic())
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


async def carry_out(scene: Scene, event: Event, leaving: dict[str, asyncio.Event]) -> None:
    name = event.victim
    if event.deed is Deed.LEAVE:
        leaving[name].set()
        return
    pids = scene.pids_of(name, event.deed)
    if name in NODES:
        scene.whole_s.pop(name, None)
    for pid in pids:
        signalled(pid, SIGNALS[event.deed])
    if event.deed in (Deed.STOP, Deed.STOP_DAEMON):
        await asyncio.sleep(event.lasts_s)
        for pid in pids:
            signalled(pid, signal.SIGCONT)
    elif event.deed in (Deed.KILL, Deed.RESTART):
        await asyncio.to_thread(scene.nodes[name].process.wait)
        await asyncio.sleep(event.lasts_s)
        scene.begin(name)
        await asyncio.to_thread(scene.note_ready, name)
        return
    if name in NODES:
        scene.note_back(name)


async def ask_on(
    scene: Scene, number: int, expected: Sequence[int], leaving: asyncio.Event, over: asyncio.Event, found: Found
) -> None:
    """Generate the client's text repeatedly, with a new client whenever it has to leave."""
    while not over.is_set():
        leaving.clear()
        try:
            maddrs = [scene.maddr(name) for name in KNOWN[number]]
            async with AsyncClient(maddrs, memory=False, network=NETWORK, dtype="float32") as client:
                while not (over.is_set() or leaving.is_set()):
                    async with asyncio.timeout(HUNG_S):
                        done = await client.generate(PROMPT, **options_of(number))
                    found.texts += 1
                    assert done.token_ids == tuple(expected), [each.peer_id for each in done.swarm.verifiers]
        except (CosineError, TimeoutError, AssertionError) as error:
            fault = f"client {number}, after {found.texts} texts of all: {type(error).__name__}: {error}"
            found.faults.append(fault)
            sys.stderr.write(f"{fault}\n")
            await asyncio.sleep(1.0)


def options_of(number: int) -> GenerationOptions:
    """The first client is greedy, the others sample."""
    return {"temperature": 0.8 if number else 0.0, "seed": number, "max_new_tokens": NEW_TOKENS}


async def texts_of(scene: Scene) -> list[tuple[int, ...]]:
    """The text of each client without faults; the greedy one must equal that of transformers."""
    async with AsyncClient(
        [scene.maddr("boot")], memory=False, network=NETWORK, dtype="float32", strategy="plain"
    ) as client:
        texts = [(await client.generate(PROMPT, **options_of(number))).token_ids for number in range(len(CLIENTS))]
    assert texts[0] == greedy(encoded(PROMPT), NEW_TOKENS)
    return texts


async def play(scene: Scene, events: Sequence[Event], *, minutes: float) -> Found:
    found, over = Found(), asyncio.Event()
    expected = await texts_of(scene)
    leaving = {name: asyncio.Event() for name in CLIENTS}
    asking = [
        asyncio.ensure_future(ask_on(scene, number, expected[number], leaving[name], over, found))
        for number, name in enumerate(CLIENTS)
    ]
    began_s, deeds = time.monotonic(), list[asyncio.Task[None]]()
    for event in events:
        await asyncio.sleep(max(0.0, began_s + event.at_s - time.monotonic()))
        is_busy = event.victim in NODES and event.victim not in scene.whole
        if is_busy or not may_be(event, scene.whole):
            continue
        found.events += 1
        sys.stderr.write(f"{event.at_s:.1f} s: {event.victim}: {event.deed} for {event.lasts_s:.1f} s\n")
        deeds.append(asyncio.create_task(carry_out(scene, event, leaving)))
    await asyncio.sleep(max(0.0, began_s + 60 * minutes - time.monotonic()))
    for deed in deeds:
        # On a busy machine a node may start too late, which loses no text.
        with suppress(Empty):
            await deed
    over.set()
    await asyncio.gather(*asking)
    return found


@pytest.mark.soak
def test_every_text_is_right_whatever_dies_or_stops(tmp_path: Path) -> None:
    with scene_in(tmp_path) as scene:
        found = asyncio.run(play(scene, planned(seed=0, minutes=MINUTES), minutes=MINUTES))
    assert found.faults == []
    assert found.texts > 0 and found.events
