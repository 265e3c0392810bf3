"""`cosine-node zoo`: the models that ship with the node."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cosine_node.cli.options import AsJson


def zoo(
    name: Annotated[str | None, typer.Argument(help="Show one model only.")] = None, as_json: AsJson = False
) -> None:
    """List the embedded models: what each is for, its size, its measured acceptance, its folder."""
    from cosine_node.zoo import names

    rows = [_row(model) for model in ([name] if name else names())]
    if as_json:
        sys.stdout.write(json.dumps({"models": rows}) + "\n")
        return
    for row in rows:
        rate = "" if row["acceptance"] is None else f"  acceptance {row['acceptance']:.2f}"
        domains = ", ".join(row["expertise"]) or "target"
        sys.stdout.write(f"zoo:{row['name']:<18} {domains:<11} {row['bytes'] / 1e6:5.1f} MB{rate}\n")
        if name:
            sys.stdout.write(f"  {row['folder']}\n")


def _row(name: str) -> dict[str, Any]:
    from cosine_node.zoo import acceptance, expertise, folder

    place = folder(name)
    domains = expertise(name)
    own = next((domain for domain in domains if domain in acceptance()), None)
    return {
        "name": name,
        "expertise": list(domains),
        "bytes": _size_bytes(place),
        "acceptance": acceptance()[own]["greedy"][own] if own else None,
        "folder": str(place),
    }


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
