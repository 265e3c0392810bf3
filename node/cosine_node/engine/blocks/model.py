"""The class of models of transformers that have some of their weights in blocks."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from cosine_node.engine.blocks.experts import compute_in_blocks
from cosine_node.engine.blocks.matrix import BlockEmbedding, BlockLayout, BlockLinear, BlockMatrix


def block_class(model_class: Any, layouts: Mapping[str, BlockLayout]) -> Any:
    """The class of causal LMs that have these weights in blocks, by the weights' names in `model_class`.

    An output layer that is the embedding shares its matrix. Without any it is `model_class`.
    """
    if not layouts:
        return model_class

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        replace_weights(self, layouts)

    members = {"__init__": build, "__module__": model_class.__module__}
    # transformers looks up what a class can do by its name and its module.
    return type(model_class.__name__, (model_class,), members)


def planes_name(name: str) -> str:
    """What the bytes of a weight of this name are called."""
    module, dot, last = name.rpartition(".")
    return f"{module}{dot}matrix.planes" if last == "weight" else f"{name}.planes"


def replace_weights(model: Any, layouts: Mapping[str, BlockLayout]) -> None:
    """Let modules of a model have their weights in blocks."""
    for name, layout in layouts.items():
        matrix = BlockMatrix(layout)
        sharing = [target for target, source in model.all_tied_weights_keys.items() if source == name]
        if layout.experts is not None:
            _put(model, name, matrix)
        elif isinstance(module := model.get_submodule(name.removesuffix(".weight")), nn.Embedding):
            BlockEmbedding.stand_in(module, matrix)
        else:
            assert isinstance(module, nn.Linear)
            _put(model, name, BlockLinear(matrix, module.bias))
        for target in sharing:
            bias = model.get_submodule(target.removesuffix(".weight")).bias
            _put(model, target, BlockLinear(matrix, bias, is_shared=True))
            del model.all_tied_weights_keys[target]
    if any(layout.experts is not None for layout in layouts.values()):
        compute_in_blocks(model)


def _put(model: Any, name: str, module: nn.Module) -> None:
    path, _, last = name.removesuffix(".weight").rpartition(".")
    parent = model.get_submodule(path)
    # A parameter would not give way.
    delattr(parent, last)
    setattr(parent, last, module)
