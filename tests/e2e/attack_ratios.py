"""What honest texts take beside attackers, next to what a machine with less time left would: `python -m
tests.e2e.attack_ratios`.

The attacker shares two processors with all it attacks. So texts are timed in turn without one, beside one, beside
one that runs only when nobody else wants a processor (SCHED_IDLE), and beside processes that use as much processor
time as the attacker did and attack nobody. Tells medians, their ratios, and whose processor time it is.
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # no stubs among the dependencies

from cosine_p2p import AsyncClient
from tests.e2e.attacker import KINDS
from tests.e2e.attacks import NEW_TOKENS, PROMPT, attacking, client_of, seconds_of
from tests.e2e.conftest import Swarm, swarm_in

TEXTS: Final = 8
BLOCKS: Final = 3
SETTLE_S: Final = 15.0
"""So long an attacker works before texts are timed."""
IDLE: Final = ("chrt", "--idle", "0")
SLICE_S: Final = 0.01
BURNING: Final = (
    "import sys, time\n"
    "share, turn = float(sys.argv[1]), float(sys.argv[2])\n"
    "while True:\n"
    "    until = time.process_time() + share * turn\n"
    "    while time.process_time() < until: pass\n"
    "    time.sleep((1 - share) * turn)\n"
)
OTHERS: Final = "attacker"
SMOL: Final[Mapping[str, Any]] = MappingProxyType(
    {"target": "zoo:smol-target", "dtype": None, "drafters": ("zoo:smol-general", "zoo:smol-medical")}
)


@dataclass(frozen=True, slots=True)
class Block:
    """Texts one after the other: the seconds of each, and the processors that each process used meanwhile."""

    seconds: list[float]
    processors: Mapping[str, float]


@contextmanager
def burning(processors: float) -> Iterator[None]:
    """Processes that use as much processor time, and do nothing else."""
    count = math.ceil(processors)
    command = (sys.executable, "-c", BURNING, str(min(0.99, processors / max(1, count))), str(SLICE_S))
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def used_s(swarm: Swarm) -> dict[str, float]:
    """The processor time so far, by process; the client's is ours, and all other children of ours are attackers."""
    own = psutil.Process()
    parts = {
        "client": [own, *[child for child in own.children() if child.name() == "p2pd"]],
        "verifier": [psutil.Process(swarm.verifier.process.pid)],
        "verifier's p2pd": psutil.Process(swarm.verifier.process.pid).children(),
        "bootstrap": [psutil.Process(swarm.boot.process.pid)],
        "bootstrap's p2pd": psutil.Process(swarm.boot.process.pid).children(),
        "drafters": [
            each
            for node in swarm.drafters
            for each in (psutil.Process(node.process.pid), *psutil.Process(node.process.pid).children())
        ],
    }
    known = {each.pid for processes in parts.values() for each in processes}
    parts[OTHERS] = [each for each in own.children(recursive=True) if each.pid not in known]
    return {name: sum(sum(each.cpu_times()[:2]) for each in processes) for name, processes in parts.items()}


async def block(
    swarm: Swarm, client: AsyncClient, beside: AbstractContextManager[None], expected: Sequence[int]
) -> Block:
    with beside:
        if not isinstance(beside, nullcontext):
            await asyncio.sleep(SETTLE_S)
        before, began_s = used_s(swarm), time.perf_counter()
        seconds = await seconds_of(client, TEXTS, expected)
        elapsed_s, after = time.perf_counter() - began_s, used_s(swarm)
    return Block(seconds, {name: (after[name] - before[name]) / elapsed_s for name in before})


async def compare(swarm: Swarm, kind: str) -> dict[str, object]:
    """All ways in turn, `BLOCKS` times."""
    blocks: dict[str, list[Block]] = {way: [] for way in ("quiet", "attacked", "attacked by an idle one", "busy")}
    async with client_of(swarm) as client:
        expected = (await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)).token_ids
        await seconds_of(client, 3, expected)
        for _ in range(BLOCKS):
            beside: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
                "quiet": nullcontext,
                "attacked": lambda: attacking(swarm, kind),
                "attacked by an idle one": lambda: attacking(swarm, kind, before=IDLE),
                "busy": lambda: burning(blocks["attacked"][-1].processors[OTHERS]),
            }
            for way, begin in beside.items():
                blocks[way].append(await block(swarm, client, begin(), expected))
                await asyncio.sleep(1.0)
    found: dict[str, object] = {"attack": kind}
    quiet_s = median_of(blocks["quiet"])
    for way, some in blocks.items():
        used = {name: round(mean(each.processors[name] for each in some), 2) for name in some[0].processors}
        per_text = {
            name: round(1e3 * mean(each.processors[name] * mean(each.seconds) for each in some))
            for name in ("verifier", "client")
        }
        found[way] = {
            "median_s": round(median_of(some), 2),
            "ratio": round(median_of(some) / quiet_s, 2),
            "processors": used,
            "ms_a_text": per_text,
        }
    return found


def median_of(blocks: Sequence[Block]) -> float:
    return median(second for each in blocks for second in each.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="ATTACK", help=", ".join(KINDS))
    parser.add_argument("--smol", action="store_true", help="a real target, of `make smol`")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        with swarm_in(Path(folder), **(SMOL if asked.smol else {})) as swarm:
            for kind in asked.kinds or KINDS:
                sys.stdout.write(json.dumps(asyncio.run(compare(swarm, kind)), indent=None) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
