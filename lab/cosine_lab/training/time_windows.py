"""Times requests, in virtual time, whose drafters see the end of the prompt, and some that fewer drafters see.

python -m cosine_lab.training.time_windows windows --splits tune test --kinds long
python -m cosine_lab.training.time_windows asked

Both replay recorded texts as shipped. Where prompts are longer than the window, the drafters of the real family are
asked again for what they give along those texts after the window. Prints one line of JSON for each kind of prompt,
place of the verifier, temperature and window, or number of drafters asked.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import torch

from cosine_lab.experiments.entrants import GENERALIST, SHIPPED, SHIPS
from cosine_lab.experiments.experiment import (
    TUNE_SPLIT,
    Cell,
    JsonRow,
    Prompts,
    ReplayedWorkload,
    run_cell,
    sum_of_checks,
)
from cosine_lab.simulation.scenario import Scenario
from cosine_lab.simulation.trace_engine import TraceDrafter
from cosine_lab.simulation.traces import DIGITS, DrafterTrace, Trace, TraceSet
from cosine_lab.simulation.workload import LOOKUP, TEST_SPLIT
from cosine_lab.training.record_smol_traces import LONG, load_drafters
from cosine_lab.training.record_traces import TargetOutput, candidate_table, choices_along
from cosine_node.engine.base import Engine
from cosine_node.zoo.family import Family
from cosine_p2p.request.prompt_window import USUAL_WINDOW_TOKENS
from cosine_protocol.request import Sampling

KINDS: Final[Mapping[str, tuple[Family, bool]]] = {
    "toy": (Family.TOY, False),
    "smol": (Family.SMOL, False),
    LONG: (Family.SMOL, True),
}
"""The kinds of prompts: those of each family, and over passages."""
TEMPERATURES: Final = (0.0, 0.8)
ASKED: Final = (4, 8)
"""Drafters; there are six of the real family and seven of the toy one."""


class WindowedWorkload(ReplayedWorkload):
    """Traces whose stand-in prompt spells its number a second time where the window begins.

    `shown` holds what the drafters give after the window, by the number of the trace, where it is shorter than the
    prompt. The verifier and its own drafter see the whole prompt.
    """

    shown: Mapping[int, Trace] = {}
    window_tokens = USUAL_WINDOW_TOKENS

    def __init__(self, scenario: Scenario, traces: Sequence[Trace], **options: Any) -> None:
        super().__init__(scenario, [marked(trace, self.window_tokens) for trace in traces], **options)
        self._is_windowed = bool(scenario.prompt_window_tokens)
        self._seen = TraceSet(self.shown.get(trace.number, trace) for trace in traces)

    def drafter(self, index: int) -> Engine:
        domain = self._scenario.domain(index)
        if not self._is_windowed or domain == LOOKUP:
            return super().drafter(index)
        return TraceDrafter(self._seen, f"draft-{domain}", pool_tokens=self._pool_tokens)


def marked(trace: Trace, window_tokens: int) -> Trace:
    """The trace with its number where the window of its prompt begins, unless the window is the whole prompt."""
    start = trace.prompt_tokens - window_tokens
    if start < DIGITS:
        return trace
    asked = (*trace.asked[:start], *trace.prompt()[:DIGITS], *trace.asked[start + DIGITS :])
    return replace(trace, asked=asked)


def after_window(trace: Trace, drafters: Mapping[str, Engine], window_tokens: int) -> Trace:
    """A trace whose prompt is the window, with what each drafter gives along its stream after that alone."""
    asked = trace.asked[-window_tokens:]
    sampling = Sampling(temperature=trace.temperature, seed=trace.seed)
    output = TargetOutput(asked, sampling, trace.stream, trace.near_ties)
    given: dict[str, DrafterTrace] = {}
    for name, engine in drafters.items():
        choices, prompt_nll = choices_along(engine, output)
        tokens, probabilities = candidate_table(choices)
        # No simulation under shared noise reads the other two.
        known = trace.drafters[name]
        given[name] = DrafterTrace(tokens, probabilities, known.log_probability, known.overlap, prompt_nll)
    return replace(trace, prompt_tokens=len(asked), asked=asked, drafters=given)


def time_windows(plan: argparse.Namespace) -> Iterator[JsonRow]:
    """Seconds of all prompts, with the whole prompt and with the window, and the speed by the former."""
    known = TraceSet.load_shipped(Family.SMOL)
    long = [trace for trace in known.select(domains=(LONG,)) if trace.split in plan.splits]
    if LONG in plan.kinds:
        engines = {name: recorded.engine for name, recorded in load_drafters(known.vocab_tokens).items()}
        WindowedWorkload.shown = {trace.number: after_window(trace, engines, plan.window) for trace in long}
    WindowedWorkload.window_tokens = plan.window
    for place in places(plan):
        whole_s, window_s = (
            seconds_of([replace(cell, workload=WindowedWorkload) for cell in cells])
            for cells in (cells_of(plan, place, prompt_window_tokens=shown) for shown in (0, plan.window))
        )
        seconds = {"whole_s": round(whole_s, 2), "window_s": round(window_s, 2)}
        yield {**place, "window": plan.window, **seconds, "speed": round(whole_s / window_s, 3)}


def time_asked(plan: argparse.Namespace) -> Iterator[JsonRow]:
    """Seconds of all prompts where so many drafters are asked, and the speed by the most."""
    for place in places(plan):
        seconds = [seconds_of(cells_of(plan, place, max_drafters=asked)) for asked in ASKED]
        for asked, total_s in zip(ASKED, seconds, strict=True):
            place |= {
                f"asked_{asked}_s": round(total_s, 2),
                f"asked_{asked}_speed": round(seconds[-1] / total_s, 3),
            }
        yield place


def seconds_of(cells: Sequence[Cell]) -> float:
    """Seconds of all requests. Raises `RuntimeError` if a text is not the target's."""
    results = [run_cell(cell) for cell in cells]
    if any(sum_of_checks([result.checks for result in results]).values()):
        raise RuntimeError(f"a text is wrong in one of {', '.join(map(str, cells))}")
    return sum(result.total_s for result in results)


def places(plan: argparse.Namespace) -> Iterator[JsonRow]:
    """The fields that say where and what is asked."""
    for kind, home, rtt_ms, temperature in product(plan.kinds, plan.homes, plan.rtts, TEMPERATURES):
        yield {"kind": kind, "home": home, "rtt_ms": rtt_ms, "temperature": temperature}


def cells_of(plan: argparse.Namespace, place: JsonRow, **scenario: Any) -> list[Cell]:
    """A cell of each split as a client ships, with one drafter of every expertise."""
    fields = {name: value for name, value in place.items() if name != "kind"}
    family, is_long = KINDS[place["kind"]]
    return [
        Cell(
            choice={"policy": SHIPS},
            scenario={**SHIPPED, **fields, **scenario},
            prompts=Prompts(split=split, family=family, is_long=is_long),
        )
        for split in plan.splits
    ]


def plan_of(arguments: list[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=("windows", "asked"))
    parser.add_argument("--window", type=int, default=USUAL_WINDOW_TOKENS)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--splits", nargs="+", choices=(TUNE_SPLIT, TEST_SPLIT), default=(TUNE_SPLIT,))
    parser.add_argument("--rtts", type=float, nargs="+", default=(20.0,), help="milliseconds")
    parser.add_argument("--homes", nargs="+", default=(GENERALIST,), help="the drafter at the verifier, or empty")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Time requests whose drafters see less of the prompt, or of whom fewer see it."""
    plan = plan_of(arguments)
    torch.set_num_threads(plan.threads)
    for row in time_windows(plan) if plan.what == "windows" else time_asked(plan):
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
