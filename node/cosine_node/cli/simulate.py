"""`cosine-node simulate`: a whole swarm in virtual time, exactly the same for equal inputs."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosine_node.cli.options import AsJson
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.simulation.report import SimulationReport
    from cosine_node.simulation.scenario import Scenario
    from cosine_node.simulation.soak import SoakReport

BROKEN_EXIT = 1
MAX_SEEDS = 1_000_000


def simulate(
    scenario: Annotated[
        str,
        typer.Option(
            envvar="COSINE_SCENARIO", help="A TOML file, or default, home, busy, strangers, family, soak."
        ),
    ] = "default",
    nodes: Annotated[int | None, typer.Option(help="Verifiers and drafters together.")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients that ask at the same time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same run.")] = None,
    seeds: Annotated[str | None, typer.Option(help="FIRST:END, for the soak: one run for each seed.")] = None,
    strategy: Annotated[str | None, typer.Option(envvar="COSINE_STRATEGY", help="What the clients use.")] = None,
    rtt_ms: Annotated[float | None, typer.Option(help="Round-trip time of every pair.")] = None,
    loss: Annotated[float | None, typer.Option(help="Share of packets lost, for example 0.01.")] = None,
    faults: Annotated[
        str | None, typer.Option(help="What goes wrong: random, or for example kill-drafter=2,stall=1,liar=flood.")
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
    given = {name: value for name, value in changes.items() if value is not None}
    if seeds is not None:
        _soak(scenario, seeds, is_bare=not given and nodes is None, as_json=as_json)
        return
    from cosine_node.simulation.running import run_scenario

    report = run_scenario(_chosen(scenario, nodes, given), with_plain=True)
    _show(report.as_json(), as_json=as_json, table=lambda: print_report(report))
    if report.violations():
        raise typer.Exit(BROKEN_EXIT)


def _chosen(name: str, nodes: int | None, given: dict[str, Any]) -> "Scenario":
    """The scenario of that name with what was given instead. Raises `UsageError`."""
    from cosine_node.simulation.faults import check_spec
    from cosine_node.simulation.scenario import read_scenario, with_nodes
    from cosine_node.simulation.soak import SOAK, soak_scenario

    base = soak_scenario(given.get("seed", 0)) if name == SOAK else read_scenario(name)
    chosen = replace(base, **given)
    check_spec(chosen.faults)
    return chosen if nodes is None else with_nodes(chosen, nodes)


def _soak(name: str, seeds: str, *, is_bare: bool, as_json: bool) -> None:
    from cosine_node.simulation.soak import SOAK, run_soak

    if name != SOAK or not is_bare:
        raise UsageError("--seeds goes with --scenario soak and no other option: each seed draws its own scenario.")
    report = run_soak(_range(seeds))
    _show(report.as_json(), as_json=as_json, table=lambda: print_soak(report))
    if report.failures:
        raise typer.Exit(BROKEN_EXIT)


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and 0 < int(end) - int(first) <= MAX_SEEDS):
        raise UsageError(f"--seeds must be FIRST:END, for example 0:2000, not {text!r}.")
    return range(int(first), int(end))


def _show(fields: dict[str, Any], *, as_json: bool, table: Callable[[], None]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(fields) + "\n")
    else:
        table()


def print_report(report: "SimulationReport") -> None:
    """The tables for people."""
    fields = report.as_json()
    latency = fields["latency_ms"]
    speedup = report.speedup_vs_plain
    rows = {
        "strategy": report.strategy,
        "requests": f"{fields['requests']}, {fields['finished']} finished, {fields['failed']} failed with a reason",
        "output": f"{report.tokens} tokens, {report.tokens_per_s:.1f} tokens/s",
        "latency": "-" if latency["p50"] is None else ", ".join(f"{k} {v / 1e3:.2f} s" for k, v in latency.items()),
        "against plain": "-" if speedup is None else f"{speedup:.2f}x",
        "traffic": f"{report.bytes_per_token:.0f} bytes a token",
        "machines": f"{1e3 * report.seconds_per_token:.1f} ms busy a token",
        "faults": ", ".join(f"{count} {kind}" for kind, count in report.fault_counts.items()) or "none",
        "time": f"{report.virtual_seconds:.2f} s virtual, {report.wall_seconds:.2f} s real",
        "digest": report.digest,
    }
    _print_rows(f"Simulated swarm {report.scenario!r}, seed {report.seed} (emulated devices and links)", rows)
    _print_wrong(report.violations(), good="Every finished text is the target's own; nothing hung, nothing leaked.")


def print_soak(report: "SoakReport") -> None:
    """The soak for people."""
    rows = {
        "runs": str(report.runs),
        "requests": ", ".join(f"{count} {ending}" for ending, count in report.endings.items()),
        "strategies": ", ".join(f"{name} {count}" for name, count in report.strategies.items()),
        "faults": ", ".join(f"{count} {kind}" for kind, count in report.faults.items()) or "none",
        "output": f"{report.tokens} tokens",
        "time": f"{report.wall_seconds:.1f} s",
    }
    _print_rows("Soak", rows)
    broken = [f"{failure.command}: {violation}" for failure in report.failures for violation in failure.violations]
    _print_wrong(broken, good="Every run kept every promise.")


def _print_rows(title: str, rows: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _print_wrong(violations: list[str], *, good: str) -> None:
    for line in violations or [good]:
        sys.stdout.write(line + "\n")
