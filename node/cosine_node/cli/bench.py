"""`cosine-node bench`: the experiments behind docs/benchmarks.md, and the page itself."""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from cosine_node.cli.options import AsJson
from cosine_protocol.errors import UsageError

EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "rtt": ("rtt",),
    "strategies": ("crowd", "routing", "cooperation", "liars"),
    "crowd": ("crowd",),
    "routing": ("routing",),
    "cooperation": ("cooperation",),
    "liars": ("liars",),
    "scale": ("scale",),
    "acceptance": ("acceptance",),
    "engine": ("engine",),
    "load": ("load",),
}
"""The modules of `cosine_node.bench` that each name runs; `strategies` is four of the others.

A module has `run(options, *, say)`, where options are its own kind of `ExperimentOptions`; it returns a result's
`what`, `setup`, `rows` and `findings`, and may take virtual time, real time, or a swarm for it.
"""
REPORT = "report"
FIGURES = 6
"""A choice: significant figures in the files, more than any table shows."""


def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="rtt, strategies, scale, acceptance, load, engine, or report; of strategies also one alone.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(envvar="COSINE_BENCH_OUT", help="Folder for the JSON files and figures.")
    ] = Path("docs/benchmarks"),
    quick: Annotated[bool, typer.Option("--quick", help="The smallest form: a look, not a measurement.")] = False,
    processes: Annotated[int | None, typer.Option(help="Worker processes; by default one a processor.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same figures.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts of each cell, where the experiment has any.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Output tokens of a request, where it has a fixed number.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="How often real time is taken.")] = None,
    device: Annotated[str | None, typer.Option(help="Of engine: auto, cpu, cuda, cuda:N or mps.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of engine: auto, float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of engine: processor threads.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Of load: virtual seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure strategies in virtual time or the engine in real time, or write docs/benchmarks.md from results."""
    if name != REPORT and name not in EXPERIMENTS:
        raise UsageError(f"There is no experiment {name!r}; choose one of {', '.join((*EXPERIMENTS, REPORT))}.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder, and {out} is a file.")
    counts: dict[str, float | None] = {"processes": processes, "prompts": prompts, "tokens": tokens}
    counts |= {"repeats": repeats, "threads": threads, "seconds": seconds}
    if too_few := [key for key, value in counts.items() if value is not None and value < 1]:
        raise UsageError(f"--{too_few[0]} must be 1 or more.")
    if name == REPORT:
        _report(out, as_json=as_json)
        return
    others = {"seed": seed, "device": device, "dtype": dtype}
    chosen = {key: value for key, value in {**others, **counts}.items() if value is not None}
    # The number of processes changes no figure.
    flags = [f"--{key} {value}" for key, value in chosen.items() if key != "processes"]
    command = " ".join(["cosine-node bench", name, *(["--quick"] if quick else []), *flags])
    results = {module: _run(module, chosen, quick=quick, command=command, out=out) for module in EXPERIMENTS[name]}
    if as_json:
        shown = results if len(results) > 1 else next(iter(results.values()))
        sys.stdout.write(json.dumps(shown) + "\n")


def _run(module_name: str, chosen: Mapping[str, Any], *, quick: bool, command: str, out: Path) -> dict[str, Any]:
    """Run one experiment with those of the chosen options that it has, and write its result."""
    module = importlib.import_module(f"cosine_node.bench.{module_name}")
    options_of = get_type_hints(module.run)["options"]
    known = {field.name for field in fields(options_of)}
    base = options_of.quick() if quick else options_of()
    options = replace(base, **{key: value for key, value in chosen.items() if key in known})
    began_s = time.perf_counter()
    result: dict[str, Any] = rounded({"name": module_name, "command": command, **module.run(options, say=_say)})
    file = out / f"{module_name}.json"
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    _say(f"{file} written after {time.perf_counter() - began_s:.0f} s")
    return result


def rounded(value: Any) -> Any:
    """The same with `FIGURES` significant figures, so that files stay readable."""
    match value:
        case float():
            return float(f"{value:.{FIGURES}g}")
        case dict():
            return {key: rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [rounded(part) for part in value]
        case _:
            return value


def _report(out: Path, *, as_json: bool) -> None:
    from cosine_node.bench.report import write_report

    page = write_report(out)
    figures = sorted(str(file) for file in out.glob("*.svg"))
    if as_json:
        sys.stdout.write(json.dumps({"page": str(page), "figures": figures}) + "\n")
    else:
        sys.stdout.write(f"{page} and {len(figures)} figures were written.\n")


def _say(sentence: str) -> None:
    sys.stderr.write(f"  {sentence}\n")
    sys.stderr.flush()
