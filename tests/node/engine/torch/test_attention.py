"""Packed attention equals attention token by token over the keys that each may see."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.torch import attention
from cosine_node.engine.torch.attention import AttentionKernel, attend, packed_attention
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.pass_plan import PassPlan, PathPlan
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 6
SCALE = 0.3
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
ROWS = [
    Row.chain(0, [1] * 9),
    Row(1, (1,) * 5, (0, 1, 2, 3, 4), (PREFIX, 0, 0, PREFIX, 2)),
    Row.chain(2, [1]),
]
SLOTS = [list(range(9)), [20, 13, 11, 30, 12], [40]]


TILES = RowTileSet(products=RowTiles(4, 64), attention=RowTiles(4, 8))
"""The passes of 15 tokens get a row more, and the nine queries of the first call are cut into several."""


def some_trees() -> list[SequenceTree]:
    trees = [SequenceTree(sampling=Sampling(), prompt_tokens=1) for _ in ROWS]
    for tree, row, slots in zip(trees, ROWS, SLOTS, strict=True):
        tree.add(row, slots)
    return trees


def a_plan(*, pads_rows: bool = False, is_abandoned: bool = False) -> tuple[PassPlan, list[SequenceTree]]:
    trees = some_trees()
    plan = PassPlan(
        list(zip(trees, ROWS, strict=True)),
        store=KvStore(slots=50),
        device=torch.device("cpu"),
        pads_rows=pads_rows,
        is_abandoned=lambda: is_abandoned,
    )
    return plan, trees


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH)]
    query, key, value = (torch.randn(1, heads, 15, width, generator=generator) for heads, width in shapes)
    return query, key, value


def one_by_one(
    trees: list[SequenceTree], window: int | None, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    query, key, value = tensors()
    outputs, first = [], 0
    for tree, row in zip(trees, ROWS, strict=True):
        position = {id(tree.nodes[name]): first + i for i, name in enumerate(row.nodes)}
        for name in row.nodes:
            path = tree.path(name)
            seen = [position[id(node)] for node in path if window is None or node.index > path[-1].index - window]
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // KEY_HEADS)
                scores = key[0, group, seen] @ query[0, head, position[id(path[-1])]] * SCALE
                scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1]])
                heads.append(scores.softmax(0)[: len(seen)] @ value[0, group, seen])
            outputs.append(torch.cat(heads))
        first += len(row.nodes)
    return torch.stack(outputs)


@pytest.mark.parametrize("pads_rows", [False, True])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (1.5, None), (None, SINKS), (0.7, SINKS)])
def test_packed_attention_equals_attention_one_by_one(
    pads_rows: bool, window: int | None, softcap: float | None, sinks: Tensor | None
) -> None:
    plan, trees = a_plan(pads_rows=pads_rows)
    query, key, value = tensors()
    output = attend(
        plan, 0, query=query, key=key, value=value, window=window, scale=SCALE, softcap=softcap, sinks=sinks
    )
    torch.testing.assert_close(output, one_by_one(trees, window, softcap, sinks))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (1.5, None), (None, SINKS), (0.7, SINKS)])
def test_attention_along_paths_equals_attention_one_by_one(
    window: int | None, softcap: float | None, sinks: Tensor | None
) -> None:
    trees = some_trees()
    feeds = list(zip(trees, ROWS, strict=True))
    plan = PathPlan(feeds, store=KvStore(slots=50), device=torch.device("cpu"), tiles=TILES)
    query, key, value = (torch.cat([rows, torch.full_like(rows[:, :, :1], 9.0)], 2) for rows in tensors())
    output = attend(
        plan, 0, query=query, key=key, value=value, window=window, scale=SCALE, softcap=softcap, sinks=sinks
    )
    assert len(output) == 16
    torch.testing.assert_close(output[:15], one_by_one(trees, window, softcap, sinks))


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Notes the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("most_scores", [1, 40, 200, 600])
@pytest.mark.parametrize("pads_rows", [False, True])
@pytest.mark.parametrize("tiles", [None, TILES])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (1.5, None), (0.7, SINKS)])
def test_attention_in_pieces_is_the_same_attention(
    monkeypatch: pytest.MonkeyPatch,
    most_scores: int,
    pads_rows: bool,
    tiles: RowTileSet | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    monkeypatch.setattr(attention, "MOST_SCORES", most_scores)
    plan: PassPlan | PathPlan
    plan, trees = a_plan(pads_rows=pads_rows)
    query, key, value = tensors()
    if tiles is not None:
        plan = PathPlan(list(zip(trees, ROWS, strict=True)), store=plan.store, device=query.device, tiles=TILES)
        query, key, value = (torch.cat([rows, rows[:, :, :1]], 2) for rows in tensors())
    output = attend(
        plan, 0, query=query, key=key, value=value, window=None, scale=SCALE, softcap=softcap, sinks=sinks
    )
    torch.testing.assert_close(output[:15], one_by_one(trees, None, softcap, sinks))


@pytest.mark.parametrize("softcap", [None, 50.0])
def test_a_long_prompt_keeps_few_scores_at_a_time(monkeypatch: pytest.MonkeyPatch, softcap: float | None) -> None:
    monkeypatch.setattr(attention, "MOST_SCORES", 10_000)
    heads, tokens = 8, 500
    tree, row = SequenceTree(sampling=Sampling(), prompt_tokens=1), Row.chain(0, [1] * tokens)
    tree.add(row, range(tokens))
    plan = PassPlan([(tree, row)], store=KvStore(slots=tokens), device=torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, tokens, WIDTH) for _ in range(3))
    plan.calls(None)
    plan.store.layer(0, key, value)
    with LargestTensor() as largest:
        attend(plan, 0, query=query, key=key, value=value, window=None, scale=SCALE, softcap=softcap)
    assert largest.numbers <= max(10_000, heads * tokens * WIDTH)


def test_attention_in_tiles_is_the_same_attention() -> None:
    query, key, value = tensors()
    kernel, tiles = AttentionKernel(SCALE), RowTiles(4, 8)
    bias = torch.zeros(1, 1, 16, 15)
    found = kernel.in_tiles(tiles, query[:, :KEY_HEADS], key, value, bias=bias, sinks=None)
    torch.testing.assert_close(found, kernel(query[:, :KEY_HEADS], key, value, bias=None))


def test_an_abandoned_pass_writes_nothing() -> None:
    plan, _ = a_plan(is_abandoned=True)
    query, key, value = tensors()
    with pytest.raises(PassAbandoned):
        attend(plan, 0, query=query, key=key, value=value, window=None, scale=SCALE)
    assert plan.store.bytes == 0


@pytest.mark.parametrize(
    "extra", [{}, {"plan": "a plan", "attention_mask": torch.ones(1)}, {"plan": "a plan", "position_bias": 1}]
)
def test_what_it_cannot_honour_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel):
        packed_attention(nn.Linear(1, 1), *tensors(), **extra)
