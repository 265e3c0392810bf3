"""A part of a model in a process with little address space: `python -m tests.node.engine.limited_stage ...`.

It takes the folder, the first layer, the one after the last, the layers of the model, the MiB that it may take
beside what the libraries have, the file of activations to read (- for none), and the file to write: activations, or
the tokens that the last layer chooses, as JSON.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Final

import torch

from cosine_node.engine.base import Row
from cosine_node.stages.host import StageHost
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.staged import load_stages

PROMPT: Final = tuple(range(3, 35))
SLOTS: Final = 64


def limit(mebibytes: int) -> None:
    """Let this process take so much more address space than it has."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    most_bytes = pages * resource.getpagesize() + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def main(folder: str, first: str, end: str, layers: str, mebibytes: str, read: str, write: str) -> None:
    torch.set_num_threads(1)
    # Libraries load parts of themselves with the first product.
    torch.ones(64, 64) @ torch.ones(64, 64)
    limit(int(mebibytes))
    part = LayerRange(first=int(first), end=int(end), layers=int(layers))
    [model] = load_stages(folder, [part], slots=SLOTS)
    chain = StageHost(model).open(pool_tokens=SLOTS, first_sequence=0)
    sequence = chain.books.open(sampling=Sampling(), prompt_tokens=len(PROMPT))
    found = chain.run([Row.chain(sequence, PROMPT)], None if read == "-" else Path(read).read_bytes())
    if isinstance(found, bytes):
        Path(write).write_bytes(found)
    else:
        Path(write).write_text(json.dumps([choice.token for choice in found[0].choices]), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
