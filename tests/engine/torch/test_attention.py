"""Packed attention equals attention token by token over the keys that each may see, and so over latents."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cosine_engine.base import PREFIX, Row
from cosine_engine.forward import attention
from cosine_engine.forward.attention import AttentionKernel, attend, packed_attention
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.forward.pass_plan import (
    PassPlan,
    PathPlan,
    stale_slots,
)
from cosine_engine.forward.row_tiles import RowTiles, RowTileSet
from cosine_engine.forward.support import UnsupportedModel
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.torch.load_self_test import find_way
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.engine.tiny_models import LATENT, build

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 6
SCALE = 0.3
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
ROWS = [
    Row.chain(0, [1] * 9),
    Row(1, (1,) * 5, (0, 1, 2, 3, 4), (PREFIX, 0, 0, PREFIX, 2)),
    Row.chain(2, [1]),
]
SLOTS = [list(range(9)), [20, 13, 11, 30, 12], [40]]


TILES = RowTileSet(products=RowTiles((4, 16)), attention=RowTiles((4, 8)))
"""Return passes of 15 tokens with one more row; the nine queries of the first call are cut into several."""


def a_plan(*, pads_rows: bool) -> tuple[PassPlan, list[SequenceTree]]:
    trees = [SequenceTree(sampling=Sampling(), prompt_tokens=1) for _ in ROWS]
    for tree, row, slots in zip(trees, ROWS, SLOTS, strict=True):
        tree.add(row, slots)
    plan = PassPlan(
        list(zip(trees, ROWS, strict=True)),
        store=KvStore(slots=50),
        device=torch.device("cpu"),
        pads_rows=pads_rows,
        is_abandoned=lambda: False,
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


@pytest.mark.parametrize("most_scores", [1, 200, attention.MOST_SCORES])
@pytest.mark.parametrize("plan_of", ["rows", "padded rows", "paths"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (0.7, SINKS)])
def test_packed_attention_in_pieces_equals_attention_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    most_scores: int,
    plan_of: str,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    monkeypatch.setattr(attention, "MOST_SCORES", most_scores)
    plan: PassPlan | PathPlan
    plan, trees = a_plan(pads_rows=plan_of == "padded rows")
    query, key, value = tensors()
    if plan_of == "paths":
        feeds = list(zip(trees, ROWS, strict=True))
        plan = PathPlan(feeds, store=plan.store, device=query.device, tiles=TILES)
        # A token that pads the pass.
        query, key, value = (torch.cat([rows, torch.full_like(rows[:, :, :1], 9.0)], 2) for rows in tensors())
    kernel = AttentionKernel(SCALE, softcap)
    output = attend(plan, 0, query=query, key=key, value=value, window=window, kernel=kernel, sinks=sinks)
    assert len(output) == query.shape[2]
    torch.testing.assert_close(output[:15], one_by_one(trees, window, softcap, sinks))


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Notes the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.numbers = max(self.numbers, result.numel())
        return result


def test_a_long_prompt_keeps_few_scores_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MOST_SCORES", 10_000)
    heads, tokens = 8, 500
    tree, row = SequenceTree(sampling=Sampling(), prompt_tokens=1), Row.chain(0, [1] * tokens)
    tree.add(row, range(tokens))
    plan = PassPlan([(tree, row)], store=KvStore(slots=tokens), device=torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, tokens, WIDTH) for _ in range(3))
    plan.calls(None)
    plan.store.layer(0, key, value)
    with LargestTensor() as largest:
        attend(plan, 0, query=query, key=key, value=value, window=None, kernel=AttentionKernel(SCALE, 50.0))
    assert largest.numbers <= max(10_000, heads * tokens * WIDTH)


@pytest.mark.parametrize(
    "extra", [{}, {"plan": "a plan", "attention_mask": torch.ones(1)}, {"plan": "a plan", "position_bias": 1}]
)
def test_what_it_cannot_honour_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel):
        packed_attention(nn.Linear(1, 1), *tensors(), **extra)


def deepseek() -> Any:
    return build(LATENT["DeepseekV3"]())


def attention_of(model: Any) -> Any:
    return model.model.layers[0].self_attn


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor([[7, 8, 9, 40, 41, 42, 43]]), use_cache=False).logits
        return found


def test_a_model_that_does_more_than_expand_keeps_its_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deepseek()
    own = type(attention_of(model)).expand_kv

    def expand_kv(module: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = own(module, kv_nope, k_rot)
        return keys.tanh(), values

    monkeypatch.setattr(type(attention_of(model)), "expand_kv", expand_kv)
    assert find_way(model) is PassWay.CACHED


def test_weights_that_are_no_plain_matrix_are_read_by_asking_the_layer() -> None:
    class Scaled(nn.Linear):
        """Weights are held as another number than they mean, as quantised ones are."""

        def forward(self, rows: Tensor) -> Tensor:
            return 0.5 * super().forward(rows)

    model = deepseek()
    expected = logits(model)
    for layer in model.model.layers:
        own = layer.self_attn.kv_b_proj
        scaled = Scaled(own.in_features, own.out_features, bias=False)
        scaled.weight = nn.Parameter(2 * own.weight.detach())
        layer.self_attn.kv_b_proj = scaled
    torch.testing.assert_close(logits(model), expected)
    assert find_way(model) is PassWay.PACKED


def fed(row: Row, slots: list[int]) -> tuple[SequenceTree, Row]:
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
    tree.add(row, slots)
    return tree, row


def test_what_a_former_owner_left_in_a_page_is_stale_until_the_page_is_begun() -> None:
    tree, row = fed(Row.chain(0, [5, 6]), [16, 17])
    assert stale_slots([(tree, row)]).tolist() == list(range(16, 32))
    tree.keep(row.nodes)
    following = Row.chain(0, [7])
    tree.add(following, [18])
    assert len(stale_slots([(tree, following)])) == 0


def test_slots_in_use_are_not_stale_where_the_first_of_their_page_is_written_again() -> None:
    tree, _ = fed(Row(0, (1, 2), (0, 1), (PREFIX, PREFIX)), [16, 17])
    tree.keep((1,))
    again = Row.chain(0, [3])
    tree.add(again, [16])
    stale = stale_slots([(tree, again)])
    assert stale.tolist() == [16, *range(18, 16 + PAGE_TOKENS)]
    assert stale.dtype == np.int64
