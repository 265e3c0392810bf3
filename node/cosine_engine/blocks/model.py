"""Classes of transformers models with some weights in blocks."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from cosine_engine.blocks.experts import experts_in_blocks
from cosine_engine.blocks.matrix import BlockEmbedding, BlockLayout, BlockLinear, BlockMatrix


def block_class(model_class: Any, layouts: Mapping[str, BlockLayout]) -> Any:
    """Return a subclass of `model_class` with these weights, by their names, in blocks.

    A tied output layer shares the matrix of the embedding. Without layouts, return `model_class`.
    """
    if not layouts:
        return model_class

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        replace_weights(self, layouts)

    members = {"__init__": build, "__module__": model_class.__module__}
    # transformers looks up the capabilities of a class by its name and module.
    return type(model_class.__name__, (model_class,), members)


def planes_name(name: str) -> str:
    """Return the name of the bytes of a weight with this name."""
    module, dot, last = name.rpartition(".")
    return f"{module}{dot}matrix.planes" if last == "weight" else f"{name}.planes"


def replace_weights(model: Any, layouts: Mapping[str, BlockLayout]) -> None:
    """Replace these weights of a model by blocks."""
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
        ALL_EXPERTS_FUNCTIONS.register("cosine_blocks", experts_in_blocks)
        model.set_experts_implementation("cosine_blocks")


def _put(model: Any, name: str, module: nn.Module) -> None:
    path, _, last = name.removesuffix(".weight").rpartition(".")
    parent = model.get_submodule(path)
    # A parameter cannot be overwritten by a module.
    delattr(parent, last)
    setattr(parent, last, module)
