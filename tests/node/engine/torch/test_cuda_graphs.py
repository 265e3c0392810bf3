"""Passes in fixed shapes choose what passes of any shape choose."""

from typing import Any

import pytest
import torch

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch import cuda_graphs
from cosine_node.engine.torch.cuda_graphs import BucketPass, CudaGraphs
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_plan import BatchShape
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import tiny_llama


def _pass(packed: PackedModel, contexts: list[int]) -> torch.Tensor:
    """A pass of one token after contexts of some lengths."""
    feeds, slot = [], 0
    for number, length in enumerate(contexts):
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
        for tokens in ((7,) * length, (number + 3,)):
            nodes = tuple(range(len(tokens)))
            row = Row(number, tokens, nodes, (PREFIX, *nodes[:-1]))
            tree.add(row, range(slot, slot + len(tokens)))
            slot += len(tokens)
            if len(tokens) == length:
                packed.logits([(tree, row)], wanted=[length - 1])
                tree.keep(nodes)
        feeds.append((tree, row))
    return packed.logits(feeds, wanted=[len(contexts) - 1])


def test_one_shape_serves_passes_of_other_sizes_after_each_other() -> None:
    padded, in_place = (PackedModel(tiny_llama(), slots=400, pads_rows=pads_rows) for pads_rows in (True, False))
    for contexts in ([20, 33, 5], [2, 3, 4, 60], [50, 2, 90], [9]):
        torch.testing.assert_close(_pass(padded, contexts), _pass(in_place, contexts))


def test_the_least_recently_used_shape_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BatchShape] = []
    build = cuda_graphs.BucketPass

    def noted(decoder: Any, store: Any, shape: BatchShape, device: Any, *, memory: Any) -> BucketPass:
        made.append(shape)
        return build(decoder, store, shape, device, memory=memory)

    monkeypatch.setattr(cuda_graphs, "BucketPass", noted)
    monkeypatch.setattr(cuda_graphs, "MAX_BUCKETS", 2)
    packed = PackedModel(tiny_llama(), slots=400, pads_rows=True)
    assert isinstance(packed._graphs, CudaGraphs)
    made.clear()
    for contexts in ([20], [20, 20], [20], [20, 20, 20], [20], [20, 20]):
        _pass(packed, contexts)
    assert [shape.sequences for shape in made] == [1, 2, 4, 2]
