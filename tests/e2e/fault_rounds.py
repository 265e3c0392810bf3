"""Rounds of faults in a real swarm under load: `python -m tests.e2e.fault_rounds --rounds 20`.

Two verifiers, either the other's spare, two drafters and a bootstrap node serve two clients that ask on and on, and
one more, during whose text a process is killed or stopped. Afterwards it is started again, or goes on, before the
next round. The text must be what transformers alone generates; the longest silence after the fault is the wait.
"""

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final

import psutil  # type: ignore[import-untyped]  # no stubs among the dependencies

from cosine_p2p import AsyncClient
from cosine_p2p.session.run import Run
from cosine_protocol.errors import CosineError
from tests.e2e.nodes import Node, close_all
from tests.e2e.reference import encoded, greedy

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 64
FAULT_AFTER_TOKENS: Final = 12
LOAD_CLIENTS: Final = 2
EMULATED: Final = "60/6@10"
NETWORK: Final = "fault-rounds"
DAEMON: Final = "p2pd"
STARTED_AGAIN_S: Final = 60.0
"""A daemon that was killed is back after seconds; on a busy machine after more."""


class Fault(StrEnum):
    """The signal that a process gets."""

    KILLED = "kill -9"
    STOPPED = "SIGSTOP"


class Victim(StrEnum):
    """The process that gets it. The verifier is the one that serves the request."""

    VERIFIER = "the verifier"
    VERIFIERS_DAEMON = "the verifier's p2pd"
    DRAFTERS = "both drafters"
    DRAFTERS_DAEMONS = "the p2pd of both drafters"
    BOOTSTRAP = "the bootstrap node"
    CLIENTS_DAEMONS = "the p2pd of all clients"


@dataclass(frozen=True, slots=True)
class FaultRound:
    """One round: whether the text was the target's, and the longest time without a token after the fault."""

    is_right: bool
    silence_s: float
    verifiers: int
    error: str = ""


@dataclass(slots=True)
class FaultSwarm:
    """The nodes by name, each with the arguments it is started with."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    starts: int = 0

    def begin(self, name: str, *arguments: str) -> Node:
        """Start a node; it is not ready yet. Its log is a file of its own at each start."""
        self.arguments[name] = arguments
        self.starts += 1
        self.nodes[name] = Node.start(f"{name}-{self.starts}", arguments, self.folder)
        return self.nodes[name]

    def mend(self) -> None:
        """Start again what has ended, and wait until it and every daemon is there."""
        begun = [
            self.begin(name, *self.arguments[name])
            for name, node in list(self.nodes.items())
            if node.process.poll() is not None
        ]
        for node in begun:
            node.wait_ready()
        until_s = time.monotonic() + STARTED_AGAIN_S
        while not all(daemons_of(node.process.pid) for node in self.nodes.values()):
            assert time.monotonic() < until_s, "a daemon did not come back"
            time.sleep(0.1)

    def named(self, peer_id: str) -> Node:
        return next(node for node in self.nodes.values() if node.ready.get("peer_id") == peer_id)


def daemons_of(pid: int) -> list[int]:
    """The process ids of the p2pd that a process has started."""
    try:
        return [child.pid for child in psutil.Process(pid).children() if child.name() == DAEMON]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def swarm_of(folder: Path) -> Iterator[FaultSwarm]:
    swarm = FaultSwarm(folder)
    try:
        # A fixed port, so that a bootstrap node that was killed is found again.
        boot = swarm.begin("boot", "bootstrap", "--network", NETWORK).wait_ready()
        swarm.arguments["boot"] += ("--host-maddr", boot.maddr.partition("/p2p/")[0])
        engine = ("--threads", "1", "--dtype", "float32", "--emulate", EMULATED)
        join = ("join", *engine, "--network", NETWORK, "--initial-peers", boot.maddr)
        for name in ("first", "second"):
            swarm.begin(name, *join, "--role", "verifier", "--model", "zoo:target")
        for model in ("zoo:draft-literature", "ngram"):
            swarm.begin(model.rpartition(":")[2], *join, "--role", "drafter", "--model", model)
        for node in list(swarm.nodes.values())[1:]:
            node.wait_ready()
        yield swarm
    finally:
        for node in swarm.nodes.values():
            for pid in (node.process.pid, *daemons_of(node.process.pid)):
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGCONT)
        close_all(list(swarm.nodes.values()))


def processes_of(swarm: FaultSwarm, victim: Victim, run: Run) -> Sequence[int]:
    """The ids of the processes that a fault is for."""
    [serving, *_] = run.result().verifiers
    verifier = swarm.named(serving.peer_id).process.pid
    drafters = [swarm.nodes[name].process.pid for name in ("draft-literature", "ngram")]
    match victim:
        case Victim.VERIFIER:
            return [verifier]
        case Victim.VERIFIERS_DAEMON:
            return daemons_of(verifier)
        case Victim.DRAFTERS:
            return drafters
        case Victim.DRAFTERS_DAEMONS:
            return [pid for drafter in drafters for pid in daemons_of(drafter)]
        case Victim.BOOTSTRAP:
            return [swarm.nodes["boot"].process.pid]
        case Victim.CLIENTS_DAEMONS:
            return daemons_of(os.getpid())


async def play(swarm: FaultSwarm, client: AsyncClient, fault: Fault, victim: Victim) -> FaultRound:
    """One round. What was stopped goes on afterwards; what was killed is `FaultSwarm.mend`'s."""
    pids: Sequence[int] = ()
    tokens, last_s, silence_s, error = 0, 0.0, 0.0, ""
    run = await client.start(PROMPT, strategy="cosine", max_new_tokens=NEW_TOKENS)
    try:
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            now_s = time.perf_counter()
            if pids:
                silence_s, last_s = max(silence_s, now_s - last_s), now_s
            elif tokens >= FAULT_AFTER_TOKENS:
                pids = processes_of(swarm, victim, run)
                for pid in pids:
                    os.kill(pid, signal.SIGKILL if fault is Fault.KILLED else signal.SIGSTOP)
                last_s = time.perf_counter()
    except CosineError as failure:
        error = str(failure)
    finally:
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)
    assert pids, f"no process of {victim} was found"
    done = run.result()
    is_right = not error and done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
    return FaultRound(is_right, silence_s, len(done.verifiers), error)


@asynccontextmanager
async def load(swarm: FaultSwarm, wrong: list[str]) -> AsyncIterator[None]:
    """Clients that ask on and on meanwhile; what they get wrong, or fail with, is kept in `wrong`."""

    async def ask_on(number: int) -> None:
        peers = [swarm.nodes["boot"].maddr, swarm.nodes["second"].maddr]
        async with AsyncClient(peers, network=NETWORK, dtype="float32") as client:
            while True:
                try:
                    done = await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
                except CosineError as error:
                    wrong.append(str(error))
                    await asyncio.sleep(1.0)
                    continue
                if done.token_ids != greedy(encoded(PROMPT), NEW_TOKENS):
                    wrong.append(f"client {number}: another text")

    tasks = [asyncio.ensure_future(ask_on(number)) for number in range(LOAD_CLIENTS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def rounds_of(
    swarm: FaultSwarm,
    faults: Sequence[Fault],
    victims: Sequence[Victim],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> list[dict[str, object]]:
    """All rounds of every kind, a row for each kind."""
    rows: list[dict[str, object]] = []
    wrong: list[str] = []
    greedy(encoded(PROMPT), NEW_TOKENS)
    peers = [swarm.nodes["boot"].maddr, swarm.nodes["first"].maddr]
    async with AsyncClient(peers, network=NETWORK, dtype="float32") as client, load(swarm, wrong):
        await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
        for fault in faults:
            for victim in victims:
                if (fault, victim) == (Fault.STOPPED, Victim.CLIENTS_DAEMONS):
                    # Nobody else is left who could go on.
                    continue
                played = []
                for _ in range(rounds):
                    played.append(await play(swarm, client, fault, victim))
                    await asyncio.to_thread(swarm.mend)
                silences_s = sorted(one.silence_s for one in played)
                row = {
                    "fault": fault,
                    "victim": victim,
                    "rounds": rounds,
                    "right": sum(one.is_right for one in played),
                    "silence_p50_s": round(median(silences_s), 2),
                    "silence_most_s": round(silences_s[-1], 2),
                    "errors": [one.error for one in played if one.error],
                    "failed_beside": list(wrong),
                }
                wrong.clear()
                say(json.dumps(row))
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--victim", action="append", choices=[victim.name.lower() for victim in Victim])
    parser.add_argument("--fault", action="append", choices=[fault.name.lower() for fault in Fault])
    asked = parser.parse_args()
    victims = [Victim[name.upper()] for name in asked.victim] if asked.victim else list(Victim)
    faults = [Fault[name.upper()] for name in asked.fault] if asked.fault else list(Fault)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        with swarm_of(Path(folder)) as swarm:
            asyncio.run(rounds_of(swarm, faults, victims, rounds=asked.rounds, say=print))


if __name__ == "__main__":
    main()
