"""The number of CPU threads of a node's passes."""

from typing import Final

import torch

from cosine_engine.gguf.model_files import ModelFiles

SMALL_MODEL_BYTES: Final = 400_000_000
"""About 100 million weights in float32. Several nodes on one machine typically run smaller models."""


def limit_threads(threads: int | None, files: ModelFiles) -> None:
    """Set the number of CPU threads. Default: one for a small model, so that several nodes can share a machine."""
    file = files.gguf
    size_bytes = files.weights_bytes if file is None else file.parameters * torch.float32.itemsize
    if threads is not None:
        torch.set_num_threads(threads)
    elif size_bytes < SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
