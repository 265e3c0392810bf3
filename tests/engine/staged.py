"""Chains of stages in one process, in step with an engine around the whole model."""

from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cosine_engine.base import Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.kv_pool import PagePool
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.load_self_test import find_way
from cosine_engine.torch.loading import StoredBlocks, load_model
from cosine_engine.torch.pass_way import PassWay
from cosine_node.stages.host import StageEngine, StageModel, load_part
from cosine_protocol.stage import LayerRange


def ranges(*ends: int) -> list[LayerRange]:
    """Return the parts of a model that end before these layers, the last of which is the number of layers."""
    return [LayerRange(first=first, end=end, layers=ends[-1]) for first, end in zip((0, *ends), ends, strict=False)]


def load_stages(source: Path | str, parts: Sequence[LayerRange], *, slots: int) -> list[StageModel]:
    """Return parts of a model, if the self-test finds them exact."""
    models = [(part, load_part(str(source), part, dtype=torch.float32)) for part in parts]
    return [StageModel(model, part, slots=slots, way=find_way(model)) for part, model in models]


def load_untried(source: Path | str, parts: Sequence[LayerRange], *, slots: int) -> list[StageModel]:
    """Return parts of a model with packed passes, without the self-test, which takes seconds."""
    return [
        StageModel(load_part(str(source), part, dtype=torch.float32), part, slots=slots, way=PassWay.PACKED)
        for part in parts
    ]


def whole_engine(source: Path | str, *, pool_tokens: int, grammars: Grammars | None = None) -> TorchEngine:
    """Return the engine of a whole model, with the decisions of `load_engine`."""
    # As in parts, the whole of a GGUF file keeps its blocks.
    model: Any = load_model(ModelFiles.in_folder(Path(source)), dtype=torch.float32, blocks=StoredBlocks.ALL)
    for weight in model.parameters():
        # Weights in a mapped file have another alignment, which affects the rounding of products.
        weight.data = weight.data.clone()
    return TorchEngine(model, pool_tokens=pool_tokens, way=find_way(model), grammars=grammars)


def through(stages: Sequence[StageEngine], rows: Sequence[Row]) -> list[RowResult]:
    """Run one pass over a chain."""
    passed: Tensor | list[RowResult] | None = None
    for stage in stages:
        assert not isinstance(passed, list)
        passed = stage.forward(rows, passed)
    assert isinstance(passed, list)
    return passed


class InStep:
    """Implements `Engine` by a whole engine and stages of chains, which must agree."""

    def __init__(self, whole: TorchEngine, *chains: Sequence[StageEngine]) -> None:
        self._whole = whole
        self._chains = chains
        self.vocab_tokens = whole.vocab_tokens
        self.context_tokens = whole.context_tokens
        self.numerics = whole.numerics
        self.grammars = whole.grammars
        self.tells_likelihoods = False
        self.passes = 0
        self.check()

    @property
    def stages(self) -> list[StageEngine]:
        return [stage for chain in self._chains for stage in chain]

    @property
    def open_sequences(self) -> int:
        return self._whole.open_sequences

    @property
    def free_tokens(self) -> int:
        return self._whole.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._whole.cached_tokens

    def check(self) -> None:
        for stage in self.stages:
            assert stage.vocab_tokens == self.vocab_tokens
            assert stage.context_tokens == self.context_tokens
            assert stage.numerics == self.numerics
            assert stage.free_tokens == self.free_tokens
            assert stage.cached_tokens == self.cached_tokens

    def _all(self, name: str, *args: Any, **options: Any) -> Any:
        found = getattr(self._whole, name)(*args, **options)
        for stage in self.stages:
            assert getattr(stage, name)(*args, **options) == found
        self.check()
        return found

    open = partialmethod(_all, "open")
    number_from = partialmethod(_all, "number_from")
    reuse_prefix = partialmethod(_all, "reuse_prefix")
    reserve = partialmethod(_all, "reserve")
    keep = partialmethod(_all, "keep")
    prune = partialmethod(_all, "prune")
    release = partialmethod(_all, "release")

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        results = self._whole.forward(rows)
        for number, chain in enumerate(self._chains):
            # Margins, candidates and likelihoods included, to the last bit.
            assert through(chain, rows) == results, f"chain {number}, pass {self.passes}"
        self.passes += 1
        return results

    def abandon(self) -> None:
        return


def in_step(
    source: Path | str, *cuts: Sequence[LayerRange], pool_tokens: int, grammars: Grammars | None = None
) -> InStep:
    """Return a whole engine and a chain for each way to cut the model."""
    chains = [
        [
            StageEngine(stage, PagePool(tokens=pool_tokens), grammars=grammars if stage.layers.is_last else None)
            for stage in load_stages(source, cut, slots=pool_tokens)
        ]
        for cut in cuts
    ]
    return InStep(whole_engine(source, pool_tokens=pool_tokens, grammars=grammars), *chains)
