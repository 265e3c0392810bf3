"""`cosine-node zoo`: the models that ship with the node, and drafters of one's own for any target."""

import json
import math
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_node.cli.asking import joining_once
from cosine_node.cli.options import DEFAULT_TARGET, AsJson, InitialPeers, Network, several
from cosine_node.terminal.printing import show
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.training.target_source import TargetSource

# --------------------
# `cosine-node convert`: a model as a GGUF file.


Source = Annotated[str, typer.Argument(metavar="SOURCE", help="zoo:NAME, a folder, or a Hugging Face id.")]
GgufOut = Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF file to write.")]
Weights = Annotated[str, typer.Option(help="F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1.")]


def convert(source: Source, out: GgufOut, weights: Weights = "Q8_0", as_json: AsJson = False) -> None:
    """Write a model of the llama kind as a GGUF file, which llama.cpp and `join` take."""
    from cosine_node.gguf.file import GgufFile
    from cosine_node.gguf.writing import write_gguf
    from cosine_node.models.model import fetch_folder

    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {out.parent} to write {out.name} into.")
    write_gguf(fetch_folder(source), out, weights=weights.upper(), name=source.removeprefix("zoo:"))
    written = GgufFile.open(out)
    size_bytes = out.stat().st_size
    if as_json:
        fields = {"file": str(out), "weights": written.weights, "bytes": size_bytes}
        sys.stdout.write(json.dumps({**fields, "content_digest": written.digest.hex()}) + "\n")
    else:
        sys.stdout.write(f"{out}: {size_bytes / 1e6:.1f} MB, weights in {written.weights}\n")


# --------------------


TRAIN: Final = "train"
TRAIN_PANEL: Final = "Of train"
"""The heading of the options that `zoo train` has."""
MINUTES: Final = 20.0
"""A choice: one processor thread sees some thousand answers of 100 tokens in them."""
WARMUP_STEPS: Final = 20
"""A choice, as for the embedded drafters."""
WEIGHT_DECAY: Final = 0.1
"""The same."""
SWARM_WIDTH: Final = 256
"""A choice: with two layers some four million weights."""

Target = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="The target: zoo:NAME, a folder, a GGUF file, a Hugging Face id.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
Texts = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="JSON lines with messages or text, .jsonl or .jsonl.xz, or a folder of them; .dev. is held out.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The drafter's folder.", rich_help_panel=TRAIN_PANEL)
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keeps the target's answers, for several drafters; OUT/work if not given.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
Domains = Annotated[
    list[str] | None,
    typer.Option(
        "--domain",
        metavar="NAME[:SHARE]",
        help="Learn from this domain alone, or by its share; may be repeated.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
Init = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Go on from this drafter.", rich_help_panel=TRAIN_PANEL),
]
Answers = Annotated[int, typer.Option(min=1, help="Answers to learn from.", rich_help_panel=TRAIN_PANEL)]
Read = Annotated[
    int,
    typer.Option(
        min=0,
        help="Of the texts' own answers, how many to learn from as well.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
HeldOut = Annotated[int, typer.Option(min=1, help="Questions to measure with.", rich_help_panel=TRAIN_PANEL)]
NewTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.", rich_help_panel=TRAIN_PANEL)]
LongestPrompt = Annotated[
    int, typer.Option(min=1, help="Tokens of a question at most.", rich_help_panel=TRAIN_PANEL)
]
Slots = Annotated[int, typer.Option(min=1, help="Answers under way at once.", rich_help_panel=TRAIN_PANEL)]
KnownTokens = Annotated[
    int, typer.Option(min=1, help="Tokens that the drafter knows.", rich_help_panel=TRAIN_PANEL)
]
Layers = Annotated[
    str,
    typer.Option(help="The target's layers that the drafter begins with.", rich_help_panel=TRAIN_PANEL),
]
Width = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Begin with an untrained model of this width and so many layers; needed through a swarm.",
        rich_help_panel=TRAIN_PANEL,
    ),
]
Minutes = Annotated[
    float | None, typer.Option(help="Minutes of training; 20 if no --steps.", rich_help_panel=TRAIN_PANEL)
]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of training.", rich_help_panel=TRAIN_PANEL)]
LearningRate = Annotated[float, typer.Option(help="The highest learning rate.", rich_help_panel=TRAIN_PANEL)]
BatchRows = Annotated[int, typer.Option(min=1, help="Answers of a step.", rich_help_panel=TRAIN_PANEL)]
Seed = Annotated[int, typer.Option(help="Same seed, same batches.", rich_help_panel=TRAIN_PANEL)]
TrainDevice = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0 or mps.", rich_help_panel=TRAIN_PANEL)]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads.", rich_help_panel=TRAIN_PANEL)]


def zoo(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|train]", help="Show one model only, or train a drafter.")
    ] = None,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    texts: Texts = None,
    out: Out = None,
    work: Work = None,
    domain: Domains = None,
    init: Init = None,
    answers: Answers = 4000,
    read: Read = 0,
    held_out: HeldOut = 32,
    new_tokens: NewTokens = 160,
    longest_prompt: LongestPrompt = 192,
    slots: Slots = 64,
    known_tokens: KnownTokens = 6143,
    layers: Layers = "0,-1",
    width: Width = None,
    minutes: Minutes = None,
    steps: Steps = None,
    learning_rate: LearningRate = 1e-3,
    batch_rows: BatchRows = 16,
    seed: Seed = 0,
    device: TrainDevice = "auto",
    threads: Threads = None,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
) -> None:
    """List the embedded models: what each is for, its size, how often it is right. Or train a drafter of your own.

    Training asks the target, here or through a swarm, and learns from its answers. Interrupted, it goes on.
    """
    if name != TRAIN:
        _list_models(name, as_json=as_json)
        return
    if texts is None or out is None:
        raise UsageError("zoo train needs --texts and --out: what is asked, and the drafter's folder.")
    record = _train(context.params)
    if as_json:
        sys.stdout.write(json.dumps(record) + "\n")
        return
    from cosine_node.training.card import agreement_table

    sys.stdout.write(f"{agreement_table(record['agreement'])}\n{out}\n")


def _train(given: dict[str, Any]) -> dict[str, Any]:
    """Train a drafter by the options of `zoo`; the record of its training."""
    from cosine_node.training.drafter_training import DrafterSettings, train_drafter
    from cosine_node.training.loop import Plan
    from cosine_node.training.target_source import Answering, LocalSource, SwarmSource
    from cosine_p2p.access import Access

    peers, layers = several(given["initial_peers"]), _layers(given["layers"])
    answering = Answering(slots=given["slots"], new_tokens=given["new_tokens"])
    source: TargetSource
    if peers:
        source = SwarmSource(
            join=joining_once(peers, Access.parse(network=given["network"])),
            options={"network": given["network"], "target": given["target"]},
            answering=answering,
            layers=len(layers),
            width=given["width"] or SWARM_WIDTH,
            seed=given["seed"],
        )
    else:
        source = LocalSource(
            model=given["target"],
            answering=answering,
            layers=layers,
            width=given["width"],
            device=given["device"],
            seed=given["seed"],
        )
    plan = Plan(
        learning_rate=given["learning_rate"],
        warmup_steps=WARMUP_STEPS,
        weight_decay=WEIGHT_DECAY,
        budget_steps=given["steps"] or math.inf,
        budget_minutes=given["minutes"] or (MINUTES if given["steps"] is None else math.inf),
    )
    named = {field.name: given[field.name] for field in fields(DrafterSettings) if field.name in given}
    named["longest_reading"] = given["new_tokens"]
    named |= {"work": given["work"] or given["out"] / "work", "shares": _shares(given["domain"] or [])}
    return train_drafter(DrafterSettings(plan=plan, **named), source, _say)


def _say(line: str) -> None:
    show(sys.stderr, f"{line}\n")


def _shares(domains: list[str]) -> dict[str, float]:
    shares = {}
    for text in domains:
        name, _, share = text.partition(":")
        try:
            shares[name] = float(share or 1)
        except ValueError:
            raise UsageError(
                f"--domain must be a name, or a name and its share as in code:0.7, not {text!r}."
            ) from None
    return shares


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--layers must be numbers with commas between, as in 0,-1, not {text!r}.") from None


def _list_models(name: str | None, *, as_json: bool) -> None:
    from cosine_node.zoo import Family, acceptance, expertise, family_of, location, names

    rows: list[dict[str, Any]] = []
    for model in [name] if name else [name for family in Family for name in names(family)]:
        place = location(model)
        files = list(place.iterdir()) if place.is_dir() else [place]
        domains = expertise(model) if family_of(model) is Family.TOY else ()
        measured = next((domain for domain in domains if domain in acceptance()), None)
        rows.append(
            {
                "name": model,
                "family": family_of(model).value,
                "expertise": list(expertise(model)),
                "bytes": sum(file.stat().st_size for file in files),
                "acceptance": acceptance()[measured]["greedy"][measured] if measured else None,
                "place": str(place),
            }
        )
    if as_json:
        sys.stdout.write(json.dumps({"models": rows}) + "\n")
        return
    for row in rows:
        rate = "" if row["acceptance"] is None else f"  right at {100 * row['acceptance']:.0f} % of positions"
        served_domains = ", ".join(row["expertise"]) or "target"
        sys.stdout.write(f"zoo:{row['name']:<18} {served_domains:<11} {row['bytes'] / 1e6:5.1f} MB{rate}\n")
        if name:
            sys.stdout.write(f"  {row['place']}\n")
