"""Times requests, in virtual time, of which a drafter only learns, beside the same ones without it.

python -m cosine_lab.training.time_pupils
python -m cosine_lab.training.time_pupils --kinds toy --coordinations client --orders 5

There are two drafters of each expertise, of whom eight are asked, and clients share feedback. One of the others
follows each request from beginning to end: eight times as often as clients ask one, and however far it is from its
domain. Replays recorded texts as shipped. Prints one line of JSON for each kind of prompt, coordination and
temperature: seconds without a pupil and with one, the share that it adds with its standard error over the requests,
and the bytes that it adds to a token. Each order of the prompts but the first is one by lot: which drafters pay is
found by trial from request to request, so that a moment here or there changes what follows.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, Final
from unittest.mock import patch

from cosine_lab.experiments.entrants import GENERALIST, SHIPPED, SHIPS
from cosine_lab.experiments.experiment import (
    TUNE_SPLIT,
    Cell,
    CellResult,
    JsonRow,
    Prompts,
    drafter_domains,
    run_cell,
)
from cosine_lab.simulation.workload import TEST_SPLIT
from cosine_node.zoo.family import Family
from cosine_p2p.directory import selection
from cosine_p2p.session import drafters
from cosine_p2p.trust.mandates import Coordination

TEMPERATURES: Final = (0.0, 0.8)


def timed(plan: argparse.Namespace) -> Iterator[JsonRow]:
    """A row for each kind of prompt, coordination and temperature."""
    for family, coordination, temperature in product(plan.kinds, plan.coordinations, plan.temperatures):
        place = {"coordination": coordination, "temperature": temperature, "rtt_ms": plan.rtt, "home": plan.home}
        nodes = 2 * len(drafter_domains(Family(family)))
        cells = [
            Cell(
                choice={"policy": SHIPS},
                scenario={**SHIPPED, **place, "drafters": nodes, "learners": nodes},
                prompts=Prompts(split=plan.split, family=Family(family), count=plan.prompts, order=order),
            )
            for order in range(plan.orders)
        ]
        # Who is asked for drafts does not depend on it.
        pairs = [(run_with(cell, every=math.inf), run_with(cell, every=1)) for cell in cells]
        added_s = [with_it.seconds[n] - without.seconds[n] for without, with_it in pairs for n in without.seconds]
        without_s = sum(without.total_s for without, _ in pairs)
        added_bytes = sum(carried_bytes(with_it) - carried_bytes(without) for without, with_it in pairs)
        spread_s = statistics.stdev(added_s) if len(added_s) > 1 else math.inf
        yield {
            "kind": family,
            **place,
            "requests": len(added_s),
            "without_s": round(without_s, 2),
            "with_s": round(without_s + sum(added_s), 2),
            "added": round(sum(added_s) / without_s, 4),
            "error": round(spread_s * math.sqrt(len(added_s)) / without_s, 4),
            "bytes_a_token": round(added_bytes / sum(with_it.report.tokens for _, with_it in pairs), 1),
        }


def run_with(cell: Cell, *, every: float) -> CellResult:
    """Run a cell with a pupil in one of so many requests. Raises `RuntimeError` if a text is not the target's."""
    with (
        patch.object(selection, "PUPIL_EVERY", every),
        patch.object(drafters, "MAX_STRANGENESS_NATS", math.inf),
    ):
        done = run_cell(cell)
    if done.checks["mismatches"] or done.checks["violations"]:
        raise RuntimeError(f"a text is wrong in {cell}")
    return done


def carried_bytes(done: CellResult) -> int:
    """The bytes that all nodes sent and received."""
    return sum(node.carried_bytes for node in done.report.nodes)


def plan_of(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kinds", nargs="+", choices=[*Family], default=[*Family])
    parser.add_argument("--split", choices=(TUNE_SPLIT, TEST_SPLIT), default=TUNE_SPLIT)
    parser.add_argument("--prompts", type=int, default=None, help="the first so many; all if not given")
    parser.add_argument("--orders", type=int, default=1, help="of the prompts")
    parser.add_argument("--rtt", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--home", default=GENERALIST, help="the drafter at the verifier, or empty")
    parser.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    ways: list[Any] = [Coordination.CLIENT.value, Coordination.VERIFIER.value]
    parser.add_argument("--coordinations", nargs="+", choices=ways, default=ways)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Time requests of which a drafter only learns."""
    for row in timed(plan_of(arguments)):
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
