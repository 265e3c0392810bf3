"""The number of CPU threads that a node's passes use."""

from pathlib import Path
from typing import Final

import torch

from cosine_node.gguf.file import GgufFile

SMALL_MODEL_BYTES: Final = 400_000_000
"""Some 100 million weights in float32. Smaller models are what several nodes on one machine run."""


def limit_threads(threads: int | None, folder: Path) -> None:
    """Use `threads`, or one for a small model: several nodes on one machine otherwise wait for each other."""
    unfolded = GgufFile.in_folder(folder)
    if unfolded is None:
        size_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    else:
        size_bytes = unfolded.parameters * torch.float32.itemsize
    if threads is not None:
        torch.set_num_threads(threads)
    elif size_bytes < SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
