"""`cosine-node bench`: runs the experiments of docs/benchmarks.md and writes the page."""

import importlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from cosine_lab.commands.bench_here import HERE, MeasuredSwarm, measure_here, measure_ring_here
from cosine_lab.commands.results import rounded, write_result
from cosine_node.cli.options import DEFAULT_TARGET, AsJson, InitialPeers, Network, Target, several
from cosine_node.terminal.printing import say
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError

EXPERIMENTS = ("engines", "rtt", "ring")
"""The modules of `cosine_lab.experiments` that can be run by name.

Each module has `run(options, *, say)`, where `options` is a subclass of `ExperimentOptions`; it returns a dict with
`what`, `setup`, `rows` and `findings`.
"""
RING = "ring"
NO_DRAFTER = "none"
REPORT = "report"
RESULTS = Path("docs/benchmarks")
"""The folder of the published results."""

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="here, engines, rtt, ring or report."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        envvar="COSINE_BENCH_OUT",
        help="Folder for the JSON files and figures. Default: docs/benchmarks; here writes none.",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Run the smallest form, which measures nothing reliably.")]
Processes = Annotated[int | None, typer.Option(help="Number of worker processes. Default: one per processor.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the experiment.")]
PromptCount = Annotated[int | None, typer.Option(help="Number of prompts of each cell.")]
TokenCount = Annotated[int | None, typer.Option(help="Number of new tokens of a request.")]
Repeats = Annotated[int | None, typer.Option(help="Number of timed repetitions.")]
VerifierDtype = Annotated[
    str | None, typer.Option(help="here: the verifier's data type: auto, float32, bfloat16 or float16.")
]
Threads = Annotated[
    int | None, typer.Option(help="here: number of CPU threads of the verifier; engines: of cores, else 1 and 2.")
]
Temperatures = Annotated[
    list[float] | None, typer.Option(help="here: sampling temperature; may be repeated. Default: 0, 0.8 and 1.")
]
PromptsFrom = Annotated[
    Path | None,
    typer.Option(help="here: file with a prompt per line, or held-out texts as for `zoo train`.", exists=True),
]
FamilyName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="here: start a swarm of toy or smol on this machine; engines: its target."),
]
VerifierEngine = Annotated[
    str | None,
    typer.Option("--engine", metavar="ENGINE", help="here: the verifier's engine: auto, llama or torch."),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="MODEL",
        help="here, ring --here: drafter in place of the default; may be repeated; none for none.",
    ),
]
OnCores = Annotated[
    bool,
    typer.Option(
        "--cores",
        help="here: pin the verifier to one core and all others to another; starts smol or --family.",
    ),
]
HomeDrafter = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="MODEL",
        help="here --cores: compare with a verifier that holds this drafter; ring --here: the head's, or none.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="here: start no prompt after this time in minutes. Default: 17 with --cores, else unlimited."
    ),
]
Rtts = Annotated[
    list[float] | None,
    typer.Option(
        "--rtt-ms",
        help="here: milliseconds added to each round trip by the client; ring --here: round trip between any two "
        "nodes. May be repeated.",
    ),
]
OverHere = Annotated[
    bool, typer.Option("--here", help="ring: measure a ring of processes on this machine by the clock.")
]
Stages = Annotated[int | None, typer.Option(help="ring --here: number of stages. Default: 3.")]
EmulatedPasses = Annotated[
    str | None,
    typer.Option(
        "--emulate",
        metavar="STAGE_MS/DRAFTER_MS",
        help="ring --here: emulated passes; the same ring runs in virtual time as well.",
    ),
]


def bench(
    name: Name,
    out: Out = None,
    quick: Quick = False,
    processes: Processes = None,
    seed: Seed = None,
    prompts: PromptCount = None,
    tokens: TokenCount = None,
    repeats: Repeats = None,
    dtype: VerifierDtype = None,
    threads: Threads = None,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    target: Target = None,
    temperature: Temperatures = None,
    prompts_from: PromptsFrom = None,
    family: FamilyName = None,
    engine: VerifierEngine = None,
    drafter: Drafters = None,
    rtt_ms: Rtts = None,
    cores: OnCores = False,
    draft_model: HomeDrafter = None,
    minutes: Minutes = None,
    over_here: OverHere = False,
    stages: Stages = None,
    emulate: EmulatedPasses = None,
    as_json: AsJson = False,
) -> None:
    """Measure a swarm (here, ring --here) or engines by the clock, strategies in virtual time (rtt, ring), or write
    a report.

    Examples: cosine-node bench here --initial-peers ADDRESS; cosine-node bench here --cores
    """
    if name not in (HERE, REPORT) and name not in EXPERIMENTS:
        known = ", ".join((HERE, *EXPERIMENTS, REPORT))
        raise UsageError(f"Unknown experiment {name!r}; choose one of {known}.")
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder; {out} is a file.")
    folder = out or RESULTS
    counts: dict[str, float | None] = {"processes": processes, "prompts": prompts, "tokens": tokens}
    counts |= {"repeats": repeats, "threads": threads, "stages": stages}
    if too_few := [key for key, value in counts.items() if value is not None and value < 1]:
        raise UsageError(f"--{too_few[0]} must be 1 or more.")
    if name == REPORT:
        _report(folder, as_json=as_json)
        return
    lists = {"temperatures": temperature, "rtts_ms": rtt_ms}
    asked: dict[str, Any] = {"prompts_from": prompts_from, "seed": seed, "minutes": minutes, **counts}
    asked |= {key: tuple(values) for key, values in lists.items() if values}
    if over_here:
        if name != RING:
            raise UsageError(f"--here is for {RING}.")
        models = tuple(model for model in several(drafter) if model != NO_DRAFTER)
        asked |= {"device": emulate, "home": draft_model, "family": family, "drafters": models if drafter else None}
        measure_ring_here(asked, quick=quick, as_json=as_json, out=out)
        return
    if name == HERE:
        swarm = MeasuredSwarm(
            initial_peers=several(initial_peers),
            network=network,
            target=target or DEFAULT_TARGET,
            family=family,
            drafters=several(drafter),
            verifier_options={"engine": engine, "dtype": dtype, "threads": threads},
            on_cores=cores,
            home=draft_model,
        )
        measure_here(swarm, asked, quick=quick, as_json=as_json, out=out)
        return
    chosen = {key: value for key, value in {"seed": seed, "family": family, **counts}.items() if value is not None}
    _measure(name, chosen, quick=quick, as_json=as_json, out=folder)


def _measure(name: str, chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path) -> None:
    """Run an experiment, write its result and print it."""
    # The number of processes does not change the result.
    flags = [f"--{key} {value}" for key, value in chosen.items() if key != "processes"]
    command = " ".join(["cosine-node bench", name, *(["--quick"] if quick else []), *flags])
    module = importlib.import_module(f"cosine_lab.experiments.{name}")
    options_of = get_type_hints(module.run)["options"]
    known = {field.name for field in fields(options_of)}
    base = options_of.quick() if quick else options_of()
    options = replace(base, **{key: value for key, value in chosen.items() if key in known})
    began_s = time.perf_counter()
    result: dict[str, Any] = rounded({"name": name, "command": command, **module.run(options, say=say)})
    write_result(out / f"{name}.json", result)
    say(f"{time.perf_counter() - began_s:.0f} s of work")
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        from cosine_lab.report.page import lines_of

        sys.stdout.write("\n".join(lines_of(result)) + "\n")


def _report(out: Path, *, as_json: bool) -> None:
    from cosine_lab.report.page import write_report

    page = write_report(out)
    figures = sorted(str(file) for file in out.glob("*.svg"))
    if as_json:
        sys.stdout.write(json.dumps({"page": str(page), "figures": figures}) + "\n")
    else:
        sys.stdout.write(f"{page} and {len(figures)} figures were written.\n")
