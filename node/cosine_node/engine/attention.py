"""The attention function of packed passes, registered with transformers' AttentionInterface.

Each call writes the pass's keys and values into the pool, then lets every sequence's queries see the slots of
its own ancestors. Models reach it unchanged; the plan travels as a forward keyword argument.
"""

from collections.abc import Sequence
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from cosine_node.engine.attention_kernel import AttentionKernel
from cosine_node.engine.kv_store import LayerPages
from cosine_node.engine.latent_attention import latent_attention_of
from cosine_node.engine.pass_plan import AttentionCall, AttentionPlan
from cosine_node.engine.support import UnsupportedModel

ATTENTION_NAME: Final = "cosine_packed"
"""The name under which a model's configuration asks for this attention."""
MOST_SCORES: Final = 1 << 24
"""A choice: 64 MiB of float32 scores, or of a mask, of which a few copies are alive; 512 queries of 64 heads over
32,768 keys have 4 GiB."""


def register_packed_attention() -> None:
    """Make `cosine_packed` known to transformers. May be called again."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    plan: AttentionPlan | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: object,
) -> tuple[Tensor, None]:
    """Attention of one layer: query [1, heads, tokens, width] to [1, tokens, heads, value width].

    Honours grouped-query heads, `scaling`, `softcap`, attention sinks (`s_aux`, one logit a head) and
    `sliding_window`, given or an attribute of the module. Raises `UnsupportedModel` for what it cannot honour.
    """
    if plan is None or attention_mask is not None or extra.get("position_bias") is not None:
        raise UnsupportedModel(
            str(getattr(getattr(module, "config", None), "model_type", type(module).__name__)),
            "it gives its attention a mask or a bias of its own, or does not pass arguments on to it",
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    latents = latent_attention_of(module)
    shared = None if latents is None else torch.cat((key, value), -1)
    output = attend(
        plan,
        cast(int, module.layer_idx),
        query=query if latents is None else latents.absorbed(query),
        key=key if shared is None else shared,
        value=value if shared is None else shared,
        window=_window(module, extra),
        scale=scale,
        softcap=softcap,
        sinks=s_aux,
    )
    if latents is not None:
        output = latents.expanded(output)
    return output.view(1, query.shape[2], query.shape[1], -1), None


def attend(
    plan: AttentionPlan,
    layer: int,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The attention of one layer, [tokens, heads * value width]; its keys and values are written to the pool first.

    Query, key and value are [1, heads, tokens, width]; keys that are values as well are kept once. Raises
    `PassAbandoned` where nobody wants the pass any more.
    """
    plan.check()
    pages = _write(plan, layer, key, value, window)
    calls = plan.calls(window)
    tiles = plan.attention_tiles
    if softcap is None and sinks is None and all(call.is_contiguous_decode for call in calls):
        return _decode(query, pages, calls, scale)
    kernel = AttentionKernel(scale, softcap)
    by_token = query[0].transpose(0, 1)
    group = query.shape[1] // pages.keys.shape[1]
    outputs = []
    for call in calls:
        keys = _read(pages.keys, call)
        values = keys if pages.values is pages.keys else _read(pages.values, call)
        alive = kernel.numbers_per_query(keys, values, group, has_sinks=sinks is not None)
        for place, piece in call.pieces(max(1, MOST_SCORES // alive)):
            grouped = _queries(by_token, piece, group)
            bias = piece.bias(query.dtype, group, tiles=tiles)
            sink_rows = None if sinks is None else _sinks_by_row(sinks, grouped, group)
            if tiles is None or bias is None:
                output = kernel(grouped, keys[place], values[place], bias=bias, sinks=sink_rows)
            else:
                output = kernel.in_tiles(tiles, grouped, keys[place], values[place], bias=bias, sinks=sink_rows)
            outputs.append(_by_token(output, piece, group))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if plan.order is None else joined[plan.order]


def _window(module: nn.Module, extra: dict[str, object]) -> int | None:
    # A layer that passes None has full attention even where its configuration names a window.
    found = extra["sliding_window"] if "sliding_window" in extra else getattr(module, "sliding_window", None)
    return found if isinstance(found, int) and found > 0 else None


def _write(plan: AttentionPlan, layer: int, key: Tensor, value: Tensor, window: int | None) -> LayerPages:
    """Write a pass's keys and values into its slots; the pages of the layer."""
    pages = plan.store.layer(layer, key, value, window=window)
    slots = plan.written if window is None else plan.window_written
    written = [(pages.keys, key)] if pages.values is pages.keys else [(pages.keys, key), (pages.values, value)]
    for stored, all_new in written:
        # Rows that pad the pass come last and are not kept.
        new = all_new.narrow(2, 0, slots.count)
        if slots.index is None:
            stored.narrow(2, slots.start, slots.count).copy_(new)
        else:
            stored.index_copy_(2, slots.index, new)
    return pages


def _decode(query: Tensor, pages: LayerPages, calls: Sequence[AttentionCall], scale: float) -> Tensor:
    """Attention of a pass that only decodes, each sequence from one run of slots, without a mask or a copy."""
    _, heads, tokens, width = query.shape
    key_heads = pages.keys.shape[1]
    rows = query.transpose(1, 2).view(tokens, 1, key_heads, heads // key_heads, width).unbind()
    outputs = [
        F.scaled_dot_product_attention(
            row,
            pages.keys.narrow(2, call.slots.start, call.slots.count),
            pages.values.narrow(2, call.slots.start, call.slots.count),
            scale=scale,
        )
        for row, call in zip(rows, calls, strict=True)
    ]
    return torch.cat(outputs).view(tokens, -1) if tokens > 1 else outputs[0].view(1, -1)


def _read(pages: Tensor, call: AttentionCall) -> Tensor:
    """The keys or values of a call, [sequences, key heads, slots, width]."""
    slots = call.slots
    if slots.index is None:
        return pages.narrow(2, slots.start, slots.count)
    _, heads, _, width = pages.shape
    rows = pages.transpose(1, 2)[0].index_select(0, slots.index)
    return rows.view(call.sequences, -1, heads, width).transpose(1, 2)


def _queries(by_token: Tensor, call: AttentionCall, group: int) -> Tensor:
    """A call's queries by the keys they share, [sequences, key heads, group * queries, width].

    Heads that share keys become rows of one product: keys need not be repeated for each of them.
    """
    queries = call.queries
    _, heads, width = by_token.shape
    if call.is_decode:
        return by_token.narrow(0, queries.start, 1).view(1, heads // group, group, width)
    found = by_token.narrow(0, queries.start, queries.count) if queries.index is None else by_token[queries.index]
    split = found.reshape(call.sequences, -1, heads // group, group, width)
    return split.permute(0, 2, 3, 1, 4).reshape(call.sequences, heads // group, -1, width)


def _by_token(output: Tensor, call: AttentionCall, group: int) -> Tensor:
    """From [sequences, key heads, group * queries, width] to [sequences * queries, heads * width]."""
    if call.is_decode:
        return output.reshape(1, -1)
    sequences, key_heads, rows, width = output.shape
    split = output.reshape(sequences, key_heads, group, rows // group, width)
    return split.permute(0, 3, 1, 2, 4).reshape(sequences * rows // group, -1)


def _sinks_by_row(sinks: Tensor, queries: Tensor, group: int) -> Tensor:
    """Sinks [heads] by the rows of a call, [1, key heads, group * queries, 1]."""
    _, key_heads, rows, _ = queries.shape
    by_row = sinks.view(1, key_heads, group, 1).expand(-1, -1, -1, rows // group)
    return by_row.reshape(1, key_heads, rows, 1)
