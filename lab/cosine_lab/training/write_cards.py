"""Write DATA.json and the model cards of a family folder.

python -m cosine_lab.training.write_cards node/cosine_node/zoo/models --manifest CORPORA/MANIFEST.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cosine_lab.training.cards import CardFacts, data_list, model_card


def main(arguments: list[str] | None = None) -> None:
    """Write README.md into every model's folder from the files that lie there and beside it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("family", type=Path)
    parser.add_argument("--manifest", type=Path, help="write DATA.json anew from this corpora manifest")
    options = parser.parse_args(arguments)
    if options.manifest:
        sources = data_list(_read_json(options.manifest))
        text = json.dumps(sources, indent=1, ensure_ascii=False) + "\n"
        (options.family / "DATA.json").write_text(text, "utf-8")
    for config in sorted(options.family.glob("*/config.json")):
        card = model_card(gather(config.parent))
        (config.parent / "README.md").write_text(card, "utf-8")


def gather(model: Path) -> CardFacts:
    """The facts of one model of a family folder."""
    return CardFacts(
        name=model.name,
        config=_read_json(model / "config.json"),
        training=_read_json(model / "training.json"),
        acceptance=_read_json(model.parent / "eval.json"),
        sources=_read_json(model.parent / "DATA.json"),
    )


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    main()
