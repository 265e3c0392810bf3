"""The attention function of packed passes, registered with transformers' AttentionInterface.

Each call writes the pass's keys and values into the pool, then lets every sequence's queries see the slots of
its own ancestors. Models reach it unchanged; the plan travels as a forward keyword argument.
"""

from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from cosine_node.engine.kv_store import LayerPages
from cosine_node.engine.pass_plan import PassPlan, Segment, SlotSet
from cosine_node.engine.support import UnsupportedModel

ATTENTION_NAME: Final = "cosine_packed"


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
    plan: PassPlan | None = None,
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
    output = attend(
        plan,
        cast(int, module.layer_idx),
        query=query,
        key=key,
        value=value,
        window=_window(module, extra),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
    )
    return output.transpose(1, 2), None


def attend(
    plan: PassPlan,
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
    """What one layer's queries see, [1, heads, tokens, value width], after its keys and values are in the pool.

    Raises `PassAbandoned` where nobody wants the pass any more.
    """
    plan.check()
    pages = _write(plan, layer, key, value)
    if softcap is None and sinks is None:
        outputs = _fused(plan, window, query, pages, scale)
    else:
        outputs = _explicit(plan, window, query, pages, scale, softcap, sinks)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _window(module: nn.Module, extra: dict[str, object]) -> int | None:
    # A layer that passes None has full attention even where its configuration names a window.
    found = extra["sliding_window"] if "sliding_window" in extra else getattr(module, "sliding_window", None)
    return found if isinstance(found, int) and found > 0 else None


def _write(plan: PassPlan, layer: int, key: Tensor, value: Tensor) -> LayerPages:
    pages = plan.store.layer(layer, key, value)
    slots = plan.written
    if slots.index is None:
        pages.keys[:, slots.start : slots.stop] = key[0]
        pages.values[:, slots.start : slots.stop] = value[0]
    else:
        pages.keys.index_copy_(1, slots.index, key[0])
        pages.values.index_copy_(1, slots.index, value[0])
    return pages


def _read(pages: Tensor, slots: SlotSet) -> Tensor:
    if slots.index is None:
        return pages[:, slots.start : slots.stop]
    return pages.index_select(1, slots.index)


def _shared(query: Tensor, segment: Segment, kv_heads: int) -> Tensor:
    """A segment's queries by the keys they share: [key heads, group, queries, width]."""
    part = query[0, :, segment.start : segment.stop]
    return part.reshape(kv_heads, -1, part.shape[1], part.shape[2])


def _fused(plan: PassPlan, window: int | None, query: Tensor, pages: LayerPages, scale: float) -> list[Tensor]:
    kv_heads, group = pages.keys.shape[0], query.shape[1] // pages.keys.shape[0]
    outputs = []
    biases = plan.biases(window, query.dtype)
    for segment, bias in zip(plan.segments(window), biases, strict=True):
        shared = _shared(query, segment, kv_heads)
        keys, values = _read(pages.keys, segment.slots), _read(pages.values, segment.slots)
        if bias is None:
            # All queries see the same: those of a group become rows of one product.
            output = F.scaled_dot_product_attention(
                shared.flatten(1, 2)[None], keys[None], values[None], scale=scale
            )
        else:
            output = F.scaled_dot_product_attention(
                shared, _repeated(keys, group), _repeated(values, group), attn_mask=bias, scale=scale
            )
        outputs.append(output.reshape(1, query.shape[1], -1, values.shape[2]))
    return outputs


def _repeated(pages: Tensor, group: int) -> Tensor:
    # A stride of zero: nothing is copied.
    return pages[:, None].expand(-1, group, -1, -1)


def _explicit(
    plan: PassPlan,
    window: int | None,
    query: Tensor,
    pages: LayerPages,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> list[Tensor]:
    outputs = []
    biases = plan.biases(window, torch.float32)
    for segment, bias in zip(plan.segments(window), biases, strict=True):
        keys, values = _read(pages.keys, segment.slots), _read(pages.values, segment.slots)
        scores = _shared(query, segment, len(keys)) @ keys[:, None].transpose(2, 3)
        scores = scores.float() * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if bias is not None:
            scores = scores + bias
        output = _softmax(scores, sinks).to(query.dtype) @ values[:, None]
        outputs.append(output.flatten(0, 1)[None])
    return outputs


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    logits = sinks.float().reshape(*scores.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], 1)
    return torch.cat([scores, logits], -1).softmax(-1)[..., :-1]
