"""`cosine-node bench`: runs the experiments of docs/benchmarks.md and writes the page."""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from cosine_lab.commands.bench_here import MeasuredSwarm, measure_here, measure_ring_here
from cosine_lab.experiments.results import rounded, write_result
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.options import DEFAULT_TARGET, AsJson, InitialPeers, Network, Target, several, takes_options
from cosine_terminal.printing import say

NO_DRAFTER = "none"
RESULTS = Path("docs/benchmarks")
"""The folder of the published results."""

Out = Annotated[Path | None, everyday(envvar="COSINE_BENCH_OUT", help="Folder for the JSON files and figures.")]
Processes = Annotated[int | None, typer.Option(help="Number of worker processes. Default: one per processor.")]
FamilyName = Annotated[str | None, everyday(metavar="NAME", help="Models: toy or smol.")]
TokenCount = Annotated[int | None, typer.Option(help="Number of new tokens of a request.")]
Repeats = Annotated[int | None, typer.Option(help="Number of timed repetitions.")]
Threads = Annotated[int | None, typer.Option(help="Number of CPU threads. Default of engines: 1 and 2.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an experiment, and the folder of its result."""

    out: Out = None
    quick: Annotated[bool, everyday("--quick", help="Run the smallest form. It measures nothing reliably.")] = False
    seed: Annotated[int | None, typer.Option(help="Seed of the experiment.")] = None
    prompts: Annotated[int | None, everyday(help="Number of prompts of each cell.")] = None

    def chosen(self, **counts: Any) -> dict[str, Any]:
        """The given seed and counts. Raises `UsageError`."""
        counts |= {"prompts": self.prompts}
        if too_few := [name for name, value in counts.items() if value is not None and value < 1]:
            raise UsageError(f"--{too_few[0]} must be 1 or more.")
        _folder(self.out)
        return {name: value for name, value in {"seed": self.seed, **counts}.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocked:
    """The requests of a measurement by the clock."""

    tokens: TokenCount = None
    repeats: Repeats = None
    temperature: Annotated[list[float] | None, typer.Option(help="Sampling temperature; may be repeated.")] = None
    prompts_from: Annotated[
        Path | None,
        typer.Option(help="File with a prompt per line, or held-out texts as for `zoo train`.", exists=True),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(help="Start no prompt after this time in minutes. Default: 17 with --cores, else unlimited."),
    ] = None
    rtt_ms: Annotated[
        list[float] | None, everyday("--rtt-ms", help="Emulated round trip in ms. May be repeated.")
    ] = None
    family: FamilyName = None
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter", metavar="MODEL", help="Drafter in place of the default, or none; may be repeated."
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model", metavar="MODEL", help="The verifier's own drafter, with --cores or in a ring."
        ),
    ] = None

    def chosen(self, size: Size, **counts: Any) -> dict[str, Any]:
        """The given values of the options of an experiment. Raises `UsageError`."""
        chosen = size.chosen(tokens=self.tokens, repeats=self.repeats, **counts)
        lists = {"temperatures": self.temperature, "rtts_ms": self.rtt_ms}
        chosen |= {name: tuple(values) for name, values in lists.items() if values}
        return chosen | {"prompts_from": self.prompts_from, "minutes": self.minutes}


@takes_options
def here(
    size: Size,
    clocked: Clocked,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    target: Target = None,
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="The verifier's engine: auto, llama or torch.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The verifier's data type: auto, float32, bfloat16 or float16.")
    ] = None,
    threads: Threads = None,
    cores: Annotated[
        bool,
        everyday("--cores", help="One core for the verifier. The others share another; starts smol or --family."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a swarm by the clock, or one that it starts on this machine."""
    swarm = MeasuredSwarm(
        initial_peers=several(initial_peers),
        network=network,
        target=target or DEFAULT_TARGET,
        family=clocked.family,
        drafters=several(clocked.drafter),
        verifier_options={"engine": engine, "dtype": dtype, "threads": threads},
        on_cores=cores,
        home=clocked.draft_model,
    )
    measure_here(swarm, clocked.chosen(size, threads=threads), quick=size.quick, as_json=as_json, out=size.out)


@takes_options
def ring_here(
    size: Size,
    clocked: Clocked,
    stages: Annotated[int | None, everyday(help="Number of stages. Default: 3.")] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            "--emulate",
            metavar="STAGE_MS/DRAFTER_MS",
            help="Emulated passes; the same ring runs in virtual time as well.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a ring of processes on this machine by the clock."""
    models = tuple(model for model in several(clocked.drafter) if model != NO_DRAFTER)
    own = {"device": emulate, "home": clocked.draft_model, "family": clocked.family}
    chosen = clocked.chosen(size, stages=stages) | own | {"drafters": models if clocked.drafter else None}
    measure_ring_here(chosen, quick=size.quick, as_json=as_json, out=size.out)


@takes_options
def engines(
    size: Size,
    family: FamilyName = None,
    tokens: TokenCount = None,
    repeats: Repeats = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure the engines of this machine by the clock."""
    _measure("engines", size, size.chosen(tokens=tokens, repeats=repeats, threads=threads), family, as_json=as_json)


@takes_options
def rtt(size: Size, processes: Processes = None, as_json: AsJson = False) -> None:
    """Measure strategies at several distances in virtual time."""
    _measure("rtt", size, size.chosen(processes=processes), None, as_json=as_json)


@takes_options
def ring(size: Size, processes: Processes = None, family: FamilyName = None, as_json: AsJson = False) -> None:
    """Measure a model in parts in virtual time."""
    _measure("ring", size, size.chosen(processes=processes), family, as_json=as_json)


def report(out: Out = None, as_json: AsJson = False) -> None:
    """Write a page and figures of the results in a folder."""
    from cosine_lab.report.page import write_report

    folder = _folder(out)
    page = write_report(folder)
    figures = sorted(str(file) for file in folder.glob("*.svg"))
    if as_json:
        sys.stdout.write(json.dumps({"page": str(page), "figures": figures}) + "\n")
    else:
        sys.stdout.write(f"{page} and {len(figures)} figures were written.\n")


bench = actions(
    "bench",
    "Measure a swarm, engines, or strategies in virtual time, or write a report.",
    {"here": here, "engines": engines, "rtt": rtt, "ring": ring, "ring-here": ring_here, "report": report},
)


def _folder(out: Path | None) -> Path:
    """The folder of results. Raises `UsageError` for a file."""
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder; {out} is a file.")
    return out or RESULTS


def _measure(name: str, size: Size, counts: Mapping[str, Any], family: str | None, *, as_json: bool) -> None:
    """Run an experiment of `cosine_lab.experiments`, write its result and print it.

    The module has `run(options, *, say)`, where `options` is a subclass of `ExperimentOptions`; it returns a dict
    with `what`, `setup`, `rows` and `findings`.
    """
    chosen = {**counts, **({} if family is None else {"family": family})}
    # The number of processes does not change the result.
    flags = [f"--{key} {value}" for key, value in chosen.items() if key != "processes"]
    command = " ".join(["cosine-node bench", name, *(["--quick"] if size.quick else []), *flags])
    module = importlib.import_module(f"cosine_lab.experiments.{name}")
    options_of = get_type_hints(module.run)["options"]
    known = {field.name for field in fields(options_of)}
    base = options_of.quick() if size.quick else options_of()
    options = replace(base, **{key: value for key, value in chosen.items() if key in known})
    began_s = time.perf_counter()
    result: dict[str, Any] = rounded({"name": name, "command": command, **module.run(options, say=say)})
    write_result(_folder(size.out) / f"{name}.json", result)
    say(f"{time.perf_counter() - began_s:.0f} s of work")
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        from cosine_lab.report.page import lines_of

        sys.stdout.write("\n".join(lines_of(result)) + "\n")
