"""`cosine-node zoo` lists the embedded models, and `convert` writes GGUF files."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cosine_protocol.errors import UsageError
from cosine_terminal.companions import TRAINING
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.options import AsJson


def list_models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this model only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the embedded models: expertise, size and acceptance rate."""
    from cosine_engine.zoo import Family, acceptance, expertise, family_of, listed, location, target_of

    rows: list[dict[str, Any]] = []
    for model in [name] if name else [name for family in Family for name in listed(family)]:
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
        is_target = row["name"] == target_of(Family(row["family"]))
        served_domains = ", ".join(row["expertise"]) or ("target" if is_target else "draft head")
        sys.stdout.write(f"zoo:{row['name']:<18} {served_domains:<11} {row['bytes'] / 1e6:5.1f} MB{rate}\n")
        if name:
            sys.stdout.write(f"  {row['place']}\n")


def zoo_with(train: Callable[..., None]) -> typer.Typer:
    """The command `zoo`, whose training another distribution has."""
    text = "List the embedded models, or train a drafter of your own."
    return actions("zoo", text, {"list": list_models, "train": train}, usual="list")


zoo = zoo_with(TRAINING.absent("train", "Train a drafter of your own."))


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="zoo:NAME, a folder, or a Hugging Face id.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF file to write.")],
    weights: Annotated[str, everyday(help="F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1.")] = "Q8_0",
    as_json: AsJson = False,
) -> None:
    """Write a Llama-like model as a GGUF file for llama.cpp and `join`."""
    from cosine_engine.gguf.file import GgufFile
    from cosine_engine.gguf.writing import write_gguf
    from cosine_engine.models.loading import open_model

    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {out.parent} to write {out.name} into.")
    write_gguf(open_model(source).folder, out, weights=weights.upper(), name=source.removeprefix("zoo:"))
    written = GgufFile.open(out)
    size_bytes = out.stat().st_size
    if as_json:
        fields = {"file": str(out), "weights": written.weights, "bytes": size_bytes}
        sys.stdout.write(json.dumps({**fields, "content_digest": written.digest.hex()}) + "\n")
    else:
        sys.stdout.write(f"{out}: {size_bytes / 1e6:.1f} MB, weights in {written.weights}\n")
