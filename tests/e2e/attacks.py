"""What an honest client of a real swarm sees while it is attacked: `python -m tests.e2e.attacks`.

A bootstrap node, a verifier, three drafters and an attacker, each a process. Tells the seconds of texts before,
during and after each attack, and the memory of the verifier.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psutil  # type: ignore[import-untyped]  # no stubs among the dependencies

from cosine_p2p import AsyncClient
from tests.e2e.attacker import KINDS
from tests.e2e.conftest import Swarm, swarm_in
from tests.e2e.reference import encoded, greedy

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 24
TEXTS: Final = 10
ATTACK_S: Final = 20.0
"""So long an attack lasts before texts are timed."""
END_S: Final = 30.0
CALM_S: Final = 10.0
"""As long after it."""


@contextmanager
def attacking(swarm: Swarm, kind: str, *, before: Sequence[str] = ()) -> Iterator[None]:
    """A process that attacks the nodes meanwhile, without an error of its own; `before` begins its command."""
    task = {
        "do": kind,
        "boot": swarm.boot.maddr,
        "target": swarm.target,
        "dtype": swarm.dtype,
        "peer_ids": [swarm.boot.peer_id, swarm.verifier.peer_id],
        "prompt": PROMPT,
        "tokens": greedy(encoded(PROMPT), NEW_TOKENS),
    }
    command = (*before, sys.executable, "-m", "tests.e2e.attacker", json.dumps(task))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "attacking\n"
            yield
            attacker.communicate("", timeout=END_S)
        finally:
            attacker.kill()
    assert attacker.returncode == 0


def client_of(swarm: Swarm) -> AsyncClient:
    return AsyncClient([swarm.boot.maddr], target=swarm.target, dtype=swarm.dtype, audit=0)


async def seconds_of(client: AsyncClient, texts: int, expected: Sequence[int] | None = None) -> list[float]:
    """The seconds of so many texts, each of which must be the `expected`, or the embedded target's."""
    seconds = []
    for _ in range(texts):
        began_s = time.perf_counter()
        generation = await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
        seconds.append(time.perf_counter() - began_s)
        assert generation.token_ids == (expected or greedy(encoded(PROMPT), NEW_TOKENS))
    return seconds


def memory_bytes(swarm: Swarm) -> int:
    """What the verifier and its daemon hold."""
    process = psutil.Process(swarm.verifier.process.pid)
    return sum(each.memory_info().rss for each in (process, *process.children()))


async def measure(swarm: Swarm, kind: str) -> dict[str, object]:
    async with client_of(swarm) as client:
        await seconds_of(client, 3)
        quiet, before = await seconds_of(client, TEXTS), memory_bytes(swarm)
        with attacking(swarm, kind):
            first = await seconds_of(client, 1)
            await asyncio.sleep(ATTACK_S)
            busy, most = await seconds_of(client, TEXTS), memory_bytes(swarm)
        await asyncio.sleep(CALM_S)
        after = await seconds_of(client, TEXTS)
    rounded = {
        "quiet_s": median(quiet),
        "first_s": first[0],
        "busy_s": median(busy),
        "busy_most_s": max(busy),
        "after_s": median(after),
        "grown_mib": (most - before) / 2**20,
    }
    return {"attack": kind} | {name: round(value, 2) for name, value in rounded.items()}


def main(kinds: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        with swarm_in(Path(folder)) as swarm:
            for kind in kinds or KINDS:
                sys.stdout.write(json.dumps(asyncio.run(measure(swarm, kind))) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
