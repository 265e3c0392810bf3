"""`cosine-node zoo`: the models that ship with the node."""

import json
import sys
from typing import Annotated, Any

import typer

from cosine_node.cli.options import AsJson


def zoo(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one model only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the embedded models: what each is for, its size, how often it is right, its folder."""
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
