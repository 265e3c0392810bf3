"""Weights in the memory of the file they were read from: all of it stays there as long as one of them does.

Read on a CPU, tensors are parts of a mapping of their file. Where copies took the place of some of them, joined or
converted, the others are copied as well, so that memory holds every weight once.
"""

from collections.abc import Collection
from typing import Any, Final

import torch

MOST_COPIED: Final = 0.05
"""A choice: copying takes time, and so small a part of the weights may be held twice."""


def copy_out_of_files(model: Any, *, but: Collection[torch.nn.Parameter] = ()) -> None:
    """Copy the weights that lie in files, unless nearly all of a model's do; `but` are those soon replaced."""
    leaving = {id(weight) for weight in but}
    weights = [*model.parameters(), *model.buffers()]
    mapped = [
        # Memory that PyTorch has allocated itself can be resized.
        weight
        for weight in weights
        if weight.device.type == "cpu" and not weight.untyped_storage().resizable() and id(weight) not in leaving
    ]
    if sum(weight.nbytes for weight in mapped) < (1 - MOST_COPIED) * sum(weight.nbytes for weight in weights):
        for weight in mapped:
            weight.data = weight.data.clone()
