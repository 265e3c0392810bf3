"""`cosine-node simulate`: runs a swarm in virtual time, reproducibly."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_lab.experiments.progress import CellProgress, ProgressLine
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import everyday
from cosine_terminal.options import AsJson
from cosine_terminal.printing import FAILURE_EXIT, INTERRUPT_EXIT

if TYPE_CHECKING:
    from cosine_lab.simulation.report import SimulationReport
    from cosine_lab.simulation.soak import SoakReport

MAX_SEEDS: Final = 1_000_000
"""Maximum number of seeds of a soak: more would run for weeks."""


def simulate(
    scenario: Annotated[
        str,
        everyday(
            metavar="SCENARIO",
            envvar="COSINE_SCENARIO",
            help="File, home, busy, strangers or ring. A TOML file; also default, family or soak.",
        ),
    ] = "default",
    nodes: Annotated[int | None, everyday(metavar="COUNT", help="Number of verifiers and drafters.")] = None,
    clients: Annotated[int | None, everyday(metavar="COUNT", help="Number of concurrent clients.")] = None,
    seed: Annotated[int | None, everyday(metavar="NUMBER", help="Seed of the run.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="FIRST:END", help="Range of seeds of the soak, one run each.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", envvar="COSINE_STRATEGY", help="Strategy of the clients.")
    ] = None,
    rtt_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Round-trip time between any two peers.")
    ] = None,
    loss: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of lost packets, for example 0.01.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(metavar="FAULTS", help="Faults: random, or for example kill-drafter=2,stall=1,liar=flood."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a swarm in virtual time and compare it with plain decoding."""
    changes = {
        "clients": clients,
        "seed": seed,
        "strategy": strategy,
        "rtt_ms": rtt_ms,
        "loss": loss,
        "faults": faults,
    }
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if seeds is not None:
        _soak(scenario, seeds, is_bare=not given and nodes is None, as_json=as_json)
        return
    from cosine_lab.simulation.faults import parse_spec
    from cosine_lab.simulation.running import PLAIN, RunInterrupted, run_scenario
    from cosine_lab.simulation.scenario import read_scenario, with_nodes
    from cosine_lab.simulation.soak import SOAK, soak_scenario

    base = soak_scenario(given.get("seed", 0)) if scenario == SOAK else read_scenario(scenario)
    chosen = replace(base, **given)
    parse_spec(chosen.faults)
    chosen = chosen if nodes is None else with_nodes(chosen, nodes)
    runs = 1 if chosen.strategy == PLAIN else 2
    line = ProgressLine(CellProgress("request", runs * chosen.total_requests))
    is_interrupted = False
    try:
        report = run_scenario(chosen, with_plain=True, on_request=line.advance)
    except RunInterrupted as interrupted:
        report, is_interrupted = interrupted.report, True
    line.end()
    if as_json:
        sys.stdout.write(json.dumps(report.as_json() | {"interrupted": is_interrupted}) + "\n")
    else:
        print_report(report, is_interrupted=is_interrupted)
    _exit(is_interrupted=is_interrupted, is_bad=bool(report.violations()))


def _soak(scenario: str, seeds: str, *, is_bare: bool, as_json: bool) -> None:
    """Run a scenario for each seed of FIRST:END. Raises `UsageError`."""
    from cosine_lab.simulation.soak import SOAK, run_soak

    if scenario != SOAK or not is_bare:
        raise UsageError("--seeds requires --scenario soak and no other option: each seed draws a scenario.")
    first, _, end = seeds.partition(":")
    if not (first.isdecimal() and end.isdecimal() and 0 < int(end) - int(first) <= MAX_SEEDS):
        raise UsageError(f"--seeds must be FIRST:END, for example 0:2000, not {seeds!r}.")
    asked = range(int(first), int(end))
    line = ProgressLine(CellProgress("seed", len(asked)))
    report = run_soak(asked, on_run=lambda _: line.advance())
    line.end()
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        print_soak(report)
    _exit(is_interrupted=report.is_interrupted, is_bad=bool(report.failures))


def _exit(*, is_interrupted: bool, is_bad: bool) -> None:
    """Exit with a code other than 0 for an interrupted or failed run."""
    if is_interrupted:
        sys.stderr.write("Interrupted: the results are partial.\n")
        raise typer.Exit(INTERRUPT_EXIT)
    if is_bad:
        raise typer.Exit(FAILURE_EXIT)


def print_report(report: "SimulationReport", *, is_interrupted: bool = False) -> None:
    """Print a run as a table. An interrupted run has no figures of nodes and no digest."""
    fields = report.as_json()
    latency = fields["latency_ms"]
    speedup = report.speedup_vs_plain
    rows = {
        "strategy": report.strategy,
        "requests": f"{fields['requests']}, {fields['finished']} finished, {fields['failed']} failed with a reason",
        "output": f"{report.tokens} tokens, {report.tokens_per_s:.1f} tokens/s",
        "latency": "-" if latency["p50"] is None else ", ".join(f"{k} {v / 1e3:.2f} s" for k, v in latency.items()),
        "against plain": "-" if speedup is None else f"{speedup:.2f}x",
    }
    if report.nodes:
        rows |= {
            "traffic": f"{report.bytes_per_token:.0f} bytes a token",
            "machines": f"{1e3 * report.seconds_per_token:.1f} ms busy a token",
            "faults": ", ".join(f"{count} {kind}" for kind, count in report.fault_counts.items()) or "none",
        }
    rows["time"] = f"{report.virtual_seconds:.2f} s virtual, {report.wall_seconds:.2f} s real"
    rows |= {"digest": report.digest} if report.nodes else {}
    _print_table(f"Simulated swarm {report.scenario!r}, seed {report.seed} (emulated devices and links)", rows)
    if is_interrupted:
        return
    _print_violations(
        report.violations(), else_say="Every finished text is the target's own; nothing hung, nothing leaked."
    )


def print_soak(report: "SoakReport") -> None:
    """Print a soak as a table."""
    rows = {
        "runs": str(report.runs),
        "requests": ", ".join(f"{count} {ending}" for ending, count in report.endings.items()),
        "strategies": ", ".join(f"{name} {count}" for name, count in report.strategies.items()),
        "faults": ", ".join(f"{count} {kind}" for kind, count in report.faults.items()) or "none",
        "output": f"{report.tokens} tokens",
        "time": f"{report.wall_seconds:.1f} s",
    }
    _print_table("Soak", rows)
    broken = [f"{failure.command}: {violation}" for failure in report.failures for violation in failure.violations]
    _print_violations(broken, else_say="Every run kept every promise.")


def _print_table(title: str, rows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _print_violations(violations: list[str], *, else_say: str) -> None:
    for line in violations or [else_say]:
        sys.stdout.write(line + "\n")
