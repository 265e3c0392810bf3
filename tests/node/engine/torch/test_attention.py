"""Packed attention equals attention token by token over the keys that each may see, and so over latents."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cosine_node.engine.base import PREFIX, PassAbandoned, Row
from cosine_node.engine.torch import attention
from cosine_node.engine.torch.attention import (
    ATTENTION_NAME,
    attend,
    keep_latents,
    latent_attention_of,
    latent_layers,
    packed_attention,
)
from cosine_node.engine.torch.invariance_self_test import attention_tiles, most_hidden_keys
from cosine_node.engine.torch.kv_store import KvStore
from cosine_node.engine.torch.load_self_test import find_way
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.pass_plan import DecoderPlan, PassPlan, PathPlan
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.engine.torch.row_tiles import RowTiles, RowTileSet
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import LATENT, build, tiny_llama
from tests.thoroughness import quick_first, soak_rest

HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 4, 2, 8, 6
SCALE = 0.3
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
ROWS = [
    Row.chain(0, [1] * 9),
    Row(1, (1,) * 5, (0, 1, 2, 3, 4), (PREFIX, 0, 0, PREFIX, 2)),
    Row.chain(2, [1]),
]
SLOTS = [list(range(9)), [20, 13, 11, 30, 12], [40]]


TILES = RowTileSet(products=RowTiles((4, 16)), attention=RowTiles((4, 8)), attention_over_blocks=RowTiles((4, 8)))
"""The passes of 15 tokens get a row more, and the nine queries of the first call are cut into several."""


def a_plan(*, pads_rows: bool = False, is_abandoned: bool = False) -> tuple[PassPlan, list[SequenceTree]]:
    trees = [SequenceTree(sampling=Sampling(), prompt_tokens=1) for _ in ROWS]
    for tree, row, slots in zip(trees, ROWS, SLOTS, strict=True):
        tree.add(row, slots)
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


@pytest.mark.parametrize("most_scores", [1, 40, 200, 600, attention.MOST_SCORES])
@pytest.mark.parametrize("plan_of", ["rows", "padded rows", "paths"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (1.5, None), (None, SINKS), (0.7, SINKS)])
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
    output = attend(
        plan, 0, query=query, key=key, value=value, window=window, scale=SCALE, softcap=softcap, sinks=sinks
    )
    assert len(output) == query.shape[2]
    torch.testing.assert_close(output[:15], one_by_one(trees, window, softcap, sinks))


PlanOf = Callable[[list[tuple[SequenceTree, Row]], KvStore], DecoderPlan]


@dataclass(frozen=True, slots=True)
class Attended:
    """Tokens below a kept prefix whose keys and values, and queries of their own, depend on their node alone."""

    prefix: int
    dtype: torch.dtype

    def __call__(self, plan_of: PlanOf, path: Sequence[int]) -> Tensor:
        """The output of the last of these nodes where the others are kept."""
        return self.of_row(plan_of, Row(0, (1,), (path[-1],), (PREFIX,)), kept=path[:-1])[0]

    def of_row(
        self,
        plan_of: PlanOf,
        row: Row,
        *,
        kept: Sequence[int] = (),
    ) -> Tensor:
        slots = self.prefix + 64
        drawn = [self._draw(-number - 1, slots, heads) for number, heads in enumerate((KEY_HEADS, KEY_HEADS))]
        store = KvStore(slots=slots)
        pages = store.layer(0, *drawn)
        for stored, all_slots in zip(pages, drawn, strict=True):
            stored[:, :, :slots] = all_slots
        for place, node in enumerate(kept, self.prefix):
            for number, stored in enumerate(pages):
                stored[:, :, place] = self._draw(10 * node + number, 1, KEY_HEADS)[:, :, 0]
        tree = SequenceTree(sampling=Sampling(), prompt_tokens=1)
        below = Row.chain(0, [1] * (self.prefix + len(kept)))
        tree.add(below, range(self.prefix + len(kept)))
        tree.keep(below.nodes)
        tree.add(row, range(len(below.nodes), len(below.nodes) + len(row.nodes)))
        query, key, value = (
            torch.cat([self._draw(10 * node + number, 1, heads) for node in row.nodes], 2)
            for number, heads in ((2, HEADS), (0, KEY_HEADS), (1, KEY_HEADS))
        )
        return attend(plan_of([(tree, row)], store), 0, query=query, key=key, value=value, window=None, scale=SCALE)

    def _draw(self, seed: int, tokens: int, heads: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed + 10)
        return torch.randn(1, tokens, heads, 16, generator=generator).to(self.dtype).transpose(1, 2)


@pytest.mark.parametrize("prefix", quick_first([470, 20, 300, 380, 509, 560]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_tree_below_a_prefix_is_attended_as_if_each_node_were_alone(prefix: int, dtype: torch.dtype) -> None:
    shapes, device = {(KEY_HEADS, 16, 16)}, torch.device("cpu")
    over_parts, over_blocks = attention_tiles(shapes, dtype=dtype, device=device)
    tiles = RowTileSet(
        products=RowTiles(tuple(range(1, 20))),
        attention=over_parts,
        attention_over_blocks=over_blocks,
        hidden_keys=most_hidden_keys(shapes, over_parts, dtype=dtype, device=device),
    )

    def by_path(feeds: list[tuple[SequenceTree, Row]], store: KvStore) -> PathPlan:
        return PathPlan(feeds, store=store, device=torch.device("cpu"), tiles=tiles)

    def whole(feeds: list[tuple[SequenceTree, Row]], store: KvStore) -> PassPlan:
        return PassPlan(feeds, store=store, device=torch.device("cpu"))

    parents = (PREFIX, 0, 1, 1, 3, 0, 4, PREFIX, 7, 8, 6, 2)
    row = Row(0, (1,) * len(parents), tuple(range(len(parents))), parents)
    attended = Attended(prefix, dtype)
    output = attended.of_row(by_path, row)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(output, attended.of_row(whole, row), atol=tolerance, rtol=tolerance)
    for node in row.nodes:
        path = [node]
        while parents[path[0]] != PREFIX:
            path.insert(0, parents[path[0]])
        assert torch.equal(output[node], attended(by_path, path))


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


def deepseek() -> Any:
    return build(LATENT["DeepseekV3"]())


def attention_of(model: Any) -> Any:
    return model.model.layers[0].self_attn


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor([[7, 8, 9, 40, 41, 42, 43]]), use_cache=False).logits
        return found


@pytest.mark.parametrize("name", soak_rest(LATENT, 2))
def test_absorbed_queries_and_expanded_outputs_are_attention_over_expanded_states(name: str) -> None:
    model = build(LATENT[name]())
    own = latent_layers(model)[0]
    config, tokens = model.config, 5
    heads, rotated = config.num_attention_heads, config.qk_rope_head_dim
    query = torch.randn(1, heads, tokens, config.qk_nope_head_dim + rotated)
    latents, rotated_keys = torch.randn(1, 1, tokens, config.kv_lora_rank), torch.randn(1, 1, tokens, rotated)
    with torch.inference_mode():
        keys, values = own.expand_kv(latents, rotated_keys)
        expected = ((query @ keys.transpose(2, 3)).softmax(-1) @ values)[0].transpose(0, 1).flatten(1)
        keep_latents(model, are_kept=True)
        layer = latent_attention_of(own)
        assert layer is not None
        shared = torch.cat((latents, rotated_keys), -1)
        output = (layer.absorbed(query) @ shared.transpose(2, 3)).softmax(-1) @ shared
        found = layer.expanded(output[0].transpose(0, 1).flatten(1))
    torch.testing.assert_close(found, expected)


def test_a_model_is_its_own_under_another_attention() -> None:
    model = deepseek()
    expected = logits(model)
    PackedModel(model, slots=16)
    model.set_attn_implementation("eager")
    assert torch.equal(logits(model), expected)


def test_copies_of_a_model_compute_for_themselves() -> None:
    model = deepseek()
    keep_latents(model, are_kept=True)
    copied = attention_of(copy.deepcopy(model))
    attention_of(model).config._attn_implementation = ATTENTION_NAME
    copied.config._attn_implementation = "eager"
    keys, _ = copied.expand_kv(torch.ones(1, 1, 3, 16), torch.ones(1, 1, 3, 8))
    assert keys.shape == (1, 4, 3, 20)


def test_a_model_that_does_more_than_expand_is_run_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deepseek()
    own = type(attention_of(model)).expand_kv

    def expand_kv(module: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = own(module, kv_nope, k_rot)
        return keys.tanh(), values

    monkeypatch.setattr(type(attention_of(model)), "expand_kv", expand_kv)
    assert find_way(model) is PassWay.EXPANDED


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


def test_other_models_and_layers_with_a_bias_have_none() -> None:
    assert not latent_layers(tiny_llama())
    model = deepseek()
    assert latent_layers(model)
    for layer in model.model.layers:
        projection = layer.self_attn.kv_b_proj
        projection.bias = nn.Parameter(torch.zeros(projection.out_features))
    assert not latent_layers(model)
