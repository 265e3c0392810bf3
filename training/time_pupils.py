"""Times requests, in virtual time, of which a drafter only learns, beside those without one.

python -m training.time_pupils

There are two drafters of each expertise, of whom eight are asked; in the last of three runs one of the others
follows each request from beginning to end, eight times as often as clients ask one, and however far it is from its
domain.
Replays recorded texts as shipped. Prints one line of JSON for each kind of prompt, coordination and temperature:
seconds where clients share no feedback, where they do, and with the pupil, and how many bytes it adds to a token.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, Final
from unittest.mock import patch

from cosine_node.bench.entrants import GENERALIST, SHIPPED, SHIPS
from cosine_node.bench.experiment import (
    TUNE_SPLIT,
    Cell,
    CellResult,
    JsonRow,
    Prompts,
    drafter_domains,
    run_cell,
)
from cosine_node.simulation.workload import TEST_SPLIT
from cosine_node.zoo.family import Family
from cosine_p2p import drafters, selection
from cosine_p2p.mandates import Coordination

TEMPERATURES: Final = (0.0, 0.8)


def timed(plan: argparse.Namespace) -> Iterator[JsonRow]:
    """A row for each kind of prompt, coordination and temperature."""
    for family, coordination, temperature in product(plan.kinds, plan.coordinations, TEMPERATURES):
        place = {"coordination": coordination, "temperature": temperature, "rtt_ms": plan.rtt, "home": plan.home}
        kinds = len(drafter_domains(Family(family)))
        cells = [
            Cell(
                choice={"policy": SHIPS},
                scenario={**SHIPPED, **place, "drafters": 2 * kinds, "learners": learners},
                prompts=Prompts(split=plan.split, family=Family(family), count=plan.prompts),
            )
            for learners in (0, 2 * kinds)
        ]
        # Who is asked for drafts does not depend on it.
        alone, sharing, taught = (
            run_with(cell, every=every) for cell, every in ((cells[0], 1), (cells[1], math.inf), (cells[1], 1))
        )
        tokens = taught.report.tokens
        yield {
            "kind": family,
            **place,
            "requests": len(taught.report.results),
            "alone_s": round(alone.total_s, 2),
            "sharing_s": round(sharing.total_s, 2),
            "taught_s": round(taught.total_s, 2),
            "price": round(taught.total_s / sharing.total_s - 1, 4),
            "bytes_a_token": round((carried_bytes(taught) - carried_bytes(sharing)) / tokens, 1),
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
    parser.add_argument("--rtt", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--home", default=GENERALIST, help="the drafter at the verifier, or empty")
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
