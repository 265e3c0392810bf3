"""Where the time of texts over a ring of stages goes: what they wait for, without one cost at a time, a ceiling."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from cosine_lab.emulation.traces import Trace
from cosine_lab.experiments.ceiling import Stages, ceiling_of
from cosine_lab.experiments.entrants import OURS, PLAIN, SHIPS
from cosine_lab.experiments.experiment import (
    CellResult,
    JsonRow,
    Say,
    emulated,
    in_processes,
    run_cell,
    setup_of,
    sum_of_checks,
)
from cosine_lab.experiments.ring import OBJECTIONS, TOLD, RingOptions, RingPlan, row_of
from cosine_lab.experiments.token_waits import waits_of
from cosine_lab.simulation.scenario import curves

WITHOUT: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        OURS.name: {},
        TOLD: OBJECTIONS[TOLD][1],
        "cosine, drafters six times as fast": {"drafter_speeds": (6.0,)},
        "cosine, drafters without distance": {"rtt_ms": 0.0, "client_rtt_ms": 20.0},
        "cosine, nodes for nothing": {"has_free_nodes": True},
    }
)
"""What ships, and without one of its costs: not to know which candidate is right, five sixths of drafters' passes,
their distance from the head, and longer passes for more nodes. Fields of `Scenario`."""


def run(options: RingOptions, *, say: Say) -> JsonRow:
    """Measure what ships with and without its costs, where the ring is measured against objections."""
    [traversal_ms] = options.objections_at_ms
    plans = [plan for temperature in options.temperatures for plan in _planned(options, temperature, traversal_ms)]
    results = in_processes(run_cell, [plan.cell for plan in plans], processes=options.processes, say=say)
    measured = list(zip(plans, results, strict=True))
    plain = {plan.temperature: result for plan, result in measured if plan.way == PLAIN.name}
    rows = [row_of(plan, result, plain[plan.temperature], seed=options.seed) for plan, result in measured]
    told = [
        ({"way": plan.way, "temperature": plan.temperature}, waits_of(result, _traces(options, plan.temperature)))
        for plan, result in measured
        if plan.way != PLAIN.name
    ]
    return {
        "what": "What texts over a ring of stages wait for, and how fast they would be without one of the costs.",
        "setup": {
            **setup_of(options),
            **emulated((options.profile,), options.rtt_ms),
            "emulated_traversal_ms": traversal_ms,
        },
        "rows": rows,
        "findings": {
            "speedups": [
                {name: row[name] for name in ("way", "temperature", "speedup", "tokens_per_s")} for row in rows
            ],
            "ms_per_token": [{**place, **found.ms} for place, found in told],
            "tokens_that_waited": [{**place, **found.tokens} for place, found in told],
            "ceilings": [_ceiling(options, traversal_ms, t, result) for t, result in plain.items()],
            **sum_of_checks(rows),
        },
    }


def _planned(options: RingOptions, temperature: float, traversal_ms: float) -> list[RingPlan]:
    plain = options.plain(temperature, traversal_ms)
    plans = [RingPlan(PLAIN.name, temperature, traversal_ms, "", plain)]
    for way, fields in WITHOUT.items():
        cell = options.cell(temperature, traversal_ms, policy=SHIPS, prompts=options.measured_prompts, **fields)
        plans.append(RingPlan(way, temperature, traversal_ms, SHIPS, cell))
    return plans


def _traces(options: RingOptions, temperature: float) -> Sequence[Trace]:
    return options.measured_prompts.traces(temperature)


def _ceiling(options: RingOptions, traversal_ms: float, temperature: float, plain: CellResult) -> JsonRow:
    """How many times as fast as plain decoding any order of feeding could be.

    What plain decoding takes up to the first token is part of both.
    """
    curve, traversal_s = curves(options.profile)[0], traversal_ms / 1e3
    stages = Stages(curve=curve, count=options.stages, way_s=traversal_s - options.stages * curve.seconds(1))
    found = ceiling_of(_traces(options, temperature), stages, tokens=options.max_new_tokens)
    first_s = plain.total_s - traversal_s * sum(result.tokens - 1 for result in plain.report.results)
    return {
        "temperature": temperature,
        "nodes": found.nodes,
        "times_plain": plain.total_s / (first_s + found.seconds),
        "luckiest_times_plain": plain.total_s / (first_s + found.luckiest_s),
    }
