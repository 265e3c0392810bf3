"""Passes in fixed shapes choose what passes of any shape choose."""

from typing import Any

import pytest
import torch

from cosine_node.engine import cuda_graphs
from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.cuda_graphs import BucketPass, CudaGraphs, bucket_of
from cosine_node.engine.packed_model import PackedModel
from cosine_node.engine.shape_buckets import BatchShape
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import tiny_llama


@pytest.mark.parametrize(
    ("shape", "fit"),
    [
        ((1, 1, 64), (1, 1, 128)),
        ((3, 2, 192), (4, 2, 192)),
        ((5, 5, 320), (8, 8, 384)),
        ((64, 1, 1024), (64, 1, 1024)),
        ((33, 2, 64), None),
        ((1, 17, 64), None),
    ],
)
def test_a_pass_takes_the_next_larger_shape(shape: tuple[int, int, int], fit: tuple[int, int, int] | None) -> None:
    found = bucket_of(BatchShape(sequences=shape[0], queries=shape[1], keys=shape[2]))
    expected = None if fit is None else BatchShape(sequences=fit[0], queries=fit[1], keys=fit[2])
    assert found == expected


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
    gathered, in_place = (PackedModel(tiny_llama(), slots=400, gathers=gathers) for gathers in (True, False))
    for contexts in ([20, 33, 5], [2, 3, 4, 60], [50, 2, 90], [9]):
        torch.testing.assert_close(_pass(gathered, contexts), _pass(in_place, contexts))


def test_the_least_recently_used_shape_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BatchShape] = []
    build = cuda_graphs.BucketPass

    def noted(decoder: Any, store: Any, shape: BatchShape, device: Any, *, memory: Any) -> BucketPass:
        made.append(shape)
        return build(decoder, store, shape, device, memory=memory)

    monkeypatch.setattr(cuda_graphs, "BucketPass", noted)
    monkeypatch.setattr(cuda_graphs, "MAX_BUCKETS", 2)
    packed = PackedModel(tiny_llama(), slots=400, gathers=True)
    assert isinstance(packed._graphs, CudaGraphs)
    made.clear()
    for contexts in ([20], [20, 20], [20], [20, 20, 20], [20], [20, 20]):
        _pass(packed, contexts)
    assert [shape.sequences for shape in made] == [1, 2, 4, 2]
