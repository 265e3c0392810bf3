"""The attention function of packed passes, registered with transformers' AttentionInterface.

Each call writes the pass's keys and values into the pool, then attends from every sequence's queries to the slots
of their ancestors. Models are not changed; they get the plan as a keyword argument of `forward`.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from cosine_engine.forward.kv_store import LayerPages
from cosine_engine.forward.pass_plan import AttentionCall, DecoderPlan
from cosine_engine.forward.row_tiles import FIXED_TILES, RowKernel, RowTiles
from cosine_engine.forward.support import UnsupportedModel

ATTENTION_NAME: Final = "cosine_packed"
"""The name of this attention in a model's configuration."""
MOST_SCORES: Final = 1 << 24
"""Maximum number of elements of scores or of a mask: 64 MiB in float32, of which a few copies are alive. 512
queries of 64 heads over 32,768 keys would have 4 GiB."""


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """The attention of one layer; with a softcap (Gemma 2, arXiv 2408.00118) or sinks, without a fused kernel.

    Query heads that share keys are rows of one product: queries are [sequences, key heads, rows, width], keys and
    values [sequences, key heads, keys, width], `bias` [sequences, 1, rows, keys], `sinks` [1, key heads, rows, 1].
    """

    scale: float
    softcap: float | None = None

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, bias: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """Return outputs [sequences, key heads, rows, value width]."""
        # PyTorch's kernels support neither softcaps nor sinks.
        if self.softcap is None and sinks is None:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=self.scale)
        # The softmax is in float32, as in transformers: 16 bits would lose the small weights of long contexts.
        scores = (queries @ keys.transpose(2, 3)).float() * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            scores = scores + bias
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            # A sink is one more key of each head, without a value.
            joined = torch.cat([scores, sinks.float().expand(len(scores), -1, -1, -1)], -1)
            weights = joined.softmax(-1)[..., :-1]
        return weights.to(queries.dtype) @ values

    def in_tiles(
        self,
        tiles: RowTiles | None,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        bias: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Call the kernel once per tile, or once without tiles. The rows of `bias` are already padded."""
        if tiles is None or bias is None or queries.shape[2] in tiles.sizes:
            return self(queries, keys, values, bias=bias, sinks=sinks)
        sizes = list(tiles.cut(queries.shape[2]))
        padded, biases = (torch.split(each, sizes, 2) for each in (tiles.pad(queries), bias))
        by_tile = [None] * len(padded) if sinks is None else torch.split(tiles.pad(sinks), sizes, 2)
        outputs = [
            self(rows, keys, values, bias=bias_rows, sinks=sink_rows)
            for rows, bias_rows, sink_rows in zip(padded, biases, by_tile, strict=True)
        ]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
        return joined[:, :, : queries.shape[2]]


class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) of one layer directly on the latents.

    Such layers expand the keys and values of all heads from one latent per token and a rotated part of the key.
    Expanded, they take 71 times as much memory in DeepSeek-V3. The expansion is linear, so it is applied to queries
    and outputs instead ("absorbed"): all heads then share one key, the latent and the rotated part, which is the
    value as well.

    An object replaces the layer's method `expand_kv`, which transformers calls with the latents
    [1, 1, tokens, rank] and the rotated parts [1, 1, tokens, rotated width], and whose result it passes to the
    layer's attention. Here the result is the unchanged input.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._key_width: int = module.qk_nope_head_dim
        self._rank: int = module.kv_lora_rank
        projection = module.kv_b_proj
        weight = projection.weight.detach()
        if type(projection) is not nn.Linear or type(projection.weight) is not nn.Parameter:
            # Quantised weights [outputs, inputs] are read by multiplying with the identity.
            with torch.no_grad():
                columns = projection(torch.eye(projection.in_features, dtype=weight.dtype, device=weight.device))
            weight = columns.t().contiguous()
        self._matrix: Tensor = weight.view(-1, self._key_width + module.v_head_dim, self._rank)

    def __call__(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """Return the key and value states for the layer's attention; expanded ones under another attention."""
        if self._module.config._attn_implementation == ATTENTION_NAME:
            return kv_nope, k_rot
        expanded: tuple[Tensor, Tensor] = type(self._module).expand_kv(self._module, kv_nope, k_rot)
        return expanded

    def absorbed(self, query: Tensor) -> Tensor:
        """Map queries [1, heads, tokens, width] to queries of latents [1, heads, tokens, rank + rotated width]."""
        plain, rotated = query[0, ..., : self._key_width], query[0, ..., self._key_width :]
        return torch.cat((self._key_product(plain), rotated), -1)[None]

    def expanded(self, output: Tensor) -> Tensor:
        """Map outputs [tokens, heads * (rank + rotated width)] to [tokens, heads * value width]."""
        heads = len(self._matrix)
        latents = output.view(len(output), heads, -1)[..., : self._rank].transpose(0, 1)
        return _by_row(self._value_product(latents))

    def kernels(self) -> list[RowKernel]:
        """Return the products with weights, from [rows, width], used for every head, to [rows, heads * outputs]."""
        heads = len(self._matrix)
        return [
            RowKernel(self._key_width, lambda rows: _by_row(self._key_product(rows.expand(heads, -1, -1)))),
            RowKernel(self._rank, lambda rows: _by_row(self._value_product(rows.expand(heads, -1, -1)))),
        ]

    def _key_product(self, rows: Tensor) -> Tensor:
        """[heads, rows, plain key width] to [heads, rows, rank]."""
        return torch.bmm(rows, self._matrix[:, : self._key_width])

    def _value_product(self, rows: Tensor) -> Tensor:
        """[heads, rows, rank] to [heads, rows, value width]."""
        return torch.bmm(rows, self._matrix[:, self._key_width :].transpose(1, 2))


def _by_row(products: Tensor) -> Tensor:
    """[heads, rows, outputs] to [rows, heads * outputs]."""
    return products.transpose(0, 1).flatten(1)


def pack_attention(model: Any) -> None:
    """Switch a transformers model to packed attention, without expanding latents. Raises `UnsupportedModel`."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    model.set_attn_implementation(ATTENTION_NAME)
    if model.config._attn_implementation != ATTENTION_NAME:
        raise UnsupportedModel(model.config.model_type, "its attention cannot be replaced")
    for module in model.modules():
        is_linear = hasattr(module, "kv_b_proj") and getattr(module.kv_b_proj, "bias", None) is None
        if hasattr(type(module), "expand_kv") and is_linear:
            vars(module)["expand_kv"] = LatentAttention(module)


def latent_attention_of(module: nn.Module) -> LatentAttention | None:
    """Return the object that replaces a layer's `expand_kv`, if any."""
    found = vars(module).get("expand_kv")
    return found if isinstance(found, LatentAttention) else None


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    plan: DecoderPlan | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: object,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer: query [1, heads, tokens, width] to [1, tokens, heads, value width].

    Supports grouped-query heads, `scaling`, `softcap`, attention sinks (`s_aux`, one logit per head) and
    `sliding_window`, as an argument or an attribute of the module. Raises `UnsupportedModel` for other arguments.
    """
    if plan is None or attention_mask is not None or extra.get("position_bias") is not None:
        raise UnsupportedModel(
            str(getattr(getattr(module, "config", None), "model_type", type(module).__name__)),
            "it passes its attention a mask or bias, or does not pass on keyword arguments",
        )
    _, heads, tokens, width = query.shape
    # A layer that passes None has full attention even if its configuration has a window.
    window = extra["sliding_window"] if "sliding_window" in extra else getattr(module, "sliding_window", None)
    latents = latent_attention_of(module)
    if latents is not None:
        query = latents.absorbed(query)
        key = value = torch.cat((key, value), -1)
    output = attend(
        plan,
        cast(int, module.layer_idx),
        query=query,
        key=key,
        value=value,
        window=window if isinstance(window, int) and window > 0 else None,
        kernel=AttentionKernel(width**-0.5 if scaling is None else scaling, softcap),
        sinks=s_aux,
    )
    if latents is not None:
        output = latents.expanded(output)
    return output.view(1, tokens, heads, -1), None


def attend(
    plan: DecoderPlan,
    layer: int,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    kernel: AttentionKernel,
    sinks: Tensor | None = None,
) -> Tensor:
    """Write a layer's keys and values to the pool, and return its attention [tokens, heads * value width].

    Query, key and value are [1, heads, tokens, width]. If key and value are the same tensor, it is stored once.
    Raises `PassAbandoned`.
    """
    plan.check()
    pages = _write(plan, layer, key, value, window)
    # PyTorch's fused kernels do not materialise scores, but require keys as wide as values.
    is_fused = kernel.softcap is None and sinks is None and pages.keys.shape[3] == pages.values.shape[3]
    found = plan.calls(window)
    calls, order, tiles = found.calls, found.order, plan.attention_tiles
    group = query.shape[1] // pages.keys.shape[1]
    # Row tiles were measured for the fused kernel only.
    if tiles is not None and not is_fused:
        tiles = FIXED_TILES
    by_token = query[0].transpose(0, 1)
    outputs = []
    for call in calls:
        keys = _read(pages.keys, call)
        values = keys if pages.values is pages.keys else _read(pages.values, call)
        # Elements that are alive for each query: its mask, or the scores of all heads.
        alive = group * keys.shape[2] * (1 if is_fused else keys.shape[1])
        for place, piece in call.pieces(max(1, MOST_SCORES // alive)):
            grouped = _queries(by_token, piece, group)
            bias = piece.bias(query.dtype, group, tiles=tiles)
            sink_rows = None
            if sinks is not None:
                # From [heads] to [1, key heads, group * queries, 1].
                _, key_heads, rows, _ = grouped.shape
                sink_rows = sinks.repeat_interleave(rows // group).view(1, key_heads, rows, 1)
            output = kernel.in_tiles(tiles, grouped, keys[place], values[place], bias=bias, sinks=sink_rows)
            outputs.append(_by_token(output, piece, group))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if order is None else joined[order]


def _write(plan: DecoderPlan, layer: int, key: Tensor, value: Tensor, window: int | None) -> LayerPages:
    """Write a pass's keys and values to its slots; return the pages of the layer."""
    pages = plan.store.layer(layer, key, value, window=window)
    slots = plan.written if window is None else plan.window_written
    written = [(pages.keys, key)] if pages.values is pages.keys else [(pages.keys, key), (pages.values, value)]
    for stored, all_new in written:
        # Padding rows come last and are not stored.
        new = all_new.narrow(2, 0, slots.count)
        if slots.index is None:
            stored.narrow(2, slots.start, slots.count).copy_(new)
        else:
            stored.index_copy_(2, slots.index, new)
    return pages


def _read(pages: Tensor, call: AttentionCall) -> Tensor:
    """Return the keys or values of a call [sequences, key heads, slots, width]."""
    slots = call.slots
    if slots.index is None:
        return pages.narrow(2, slots.start, slots.count)
    _, heads, _, width = pages.shape
    rows = pages.transpose(1, 2)[0].index_select(0, slots.index)
    return rows.view(call.sequences, -1, heads, width).transpose(1, 2)


def _queries(by_token: Tensor, call: AttentionCall, group: int) -> Tensor:
    """Return a call's queries grouped by key head, [sequences, key heads, group * queries, width].

    Heads that share keys become rows of one product, so that keys are not repeated for each of them.
    """
    queries = call.queries
    _, heads, width = by_token.shape
    if call.is_one:
        return by_token.narrow(0, queries.start, 1).view(1, heads // group, group, width)
    found = by_token.narrow(0, queries.start, queries.count) if queries.index is None else by_token[queries.index]
    split = found.reshape(call.sequences, -1, heads // group, group, width)
    return split.permute(0, 2, 3, 1, 4).reshape(call.sequences, heads // group, -1, width)


def _by_token(output: Tensor, call: AttentionCall, group: int) -> Tensor:
    """Map [sequences, key heads, group * queries, width] to [sequences * queries, heads * width]."""
    sequences, key_heads, rows, width = output.shape
    if sequences == 1 and rows == group:
        return output.reshape(1, -1)
    split = output.reshape(sequences, key_heads, group, rows // group, width)
    return split.permute(0, 3, 1, 2, 4).reshape(sequences * rows // group, -1)
