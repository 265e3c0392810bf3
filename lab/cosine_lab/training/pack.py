"""Cast the trained models to 16 bits and lay them out as the family the node ships.

python -m cosine_lab.training.pack WORK node/cosine_node/zoo/models
"""

import argparse
import logging
import shutil
from pathlib import Path

import torch

from cosine_lab.training.model import load_model, parameter_count

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Write every model of WORK/models in bf16; the tokenizer goes into the target's folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("family", type=Path)
    options = parser.parse_args(arguments)
    for config in sorted((options.work / "models").glob("*/config.json")):
        pack_model(config.parent, options.family / config.parent.name)
    for file in sorted((options.work / "tokenizer").iterdir()):
        shutil.copyfile(file, options.family / "target" / file.name)


def pack_model(source: Path, target: Path) -> None:
    """One model in bf16, with the record of its training."""
    model = load_model(source, "cpu", torch.bfloat16)
    model.save_pretrained(target)
    shutil.copyfile(source / "training.json", target / "training.json")
    size_bytes = sum(file.stat().st_size for file in target.iterdir())
    log.info("%s: %d parameters, %d bytes", target.name, parameter_count(model), size_bytes)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
