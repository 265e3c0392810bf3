"""Tiny GGUF files with random weights, for each architecture, under llama.cpp's names and as it lays them out.

Nothing here is derived from transformers: shapes and names are those of llama.cpp (src/llama-model.cpp), so that
its own results on these files are an independent reference. The weights are large enough that each of them shows.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize

VOCAB: Final = 200
WIDTH: Final = 64
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = 24
"""The width of a head, where it is no fourth of the model's."""
QUARTER: Final = WIDTH // HEADS
FEED: Final = 96
EXPERTS: Final = 5
USED: Final = 2
EXPERT_FEED: Final = 32
"""Whole blocks of most kinds."""
CONTEXT: Final = 256
WINDOW: Final = 8
"""Shorter than all texts."""

Shapes = Mapping[str, tuple[int, ...]]
"""By name, in the order of numpy: the dimension whose numbers lie beside each other is the last."""


@dataclass(frozen=True, slots=True)
class TinyGguf:
    """A file to be written; `metadata` are the keys of its architecture."""

    architecture: str
    metadata: Mapping[str, Any]
    layers: tuple[Shapes, ...]
    once: Shapes = field(default_factory=dict)
    """The tensors besides the layers'."""
    fixed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Tensors that are not random."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """All tensors by name."""
        return {
            **self.once,
            **{f"blk.{n}.{name}": shape for n, layer in enumerate(self.layers) for name, shape in layer.items()},
        }

    def write(self, file: Path, *, swapped: Mapping[str, str] | None = None, matrices: str = "F32") -> Path:
        """Write it, matrices in a type of their own; a tensor that is `swapped` has the values of another."""
        keys = {"vocab_size": VOCAB, **self.metadata}
        metadata = {f"{self.architecture}.{key}": value for key, value in keys.items()}
        tensors = {
            name: random_values((swapped or {}).get(name, name), shape) for name, shape in self.tensors().items()
        }
        tensors |= {name: np.array(values, dtype=np.float32) for name, values in self.fixed.items()}
        return write_file(file, self.architecture, {**metadata, "tokenizer.ggml.model": "none"}, tensors, matrices)

    def told(self, **metadata: Any) -> "TinyGguf":
        """The same with other metadata; `__` stands for a dot."""
        changed = {name.replace("__", "."): value for name, value in metadata.items()}
        return replace(self, metadata={**self.metadata, **changed})


def write_file(
    file: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[np.float32]],
    matrices: str = "F32",
) -> Path:
    """Write a file in float32 but for matrices of whole blocks."""
    writer = GGUFWriter(str(file), architecture)
    add_metadata(writer, metadata)
    for name, values in tensors.items():
        kind = GGMLQuantizationType[matrices]
        if values.ndim < 2 or values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
            kind = GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_metadata(writer: GGUFWriter, metadata: Mapping[str, Any]) -> None:
    """Add values in the types that converters use."""
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def random_values(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The weights of a tensor, always the same for its name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    kind = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if kind.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "output_scale.weight")):
        values = 1 + 0.3 * values
    elif kind == "ssm_a":
        values = -np.exp(0.5 * values)
    elif kind == "rope_freqs.weight":
        values = 1 + 7 * rng.random(shape)
    elif kind.startswith("rope_factors"):
        values = (3 if "long" in kind else 1) + rng.random(shape)
    elif kind.endswith("bias"):
        values *= 0.3
    elif len(shape) > 1 and kind not in ("token_embd.weight", "position_embd.weight"):
        values *= 1.4 / np.sqrt(shape[-1])
    return values.astype(np.float32)


def weights(**shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def biases(shapes: Shapes, *names: str) -> dict[str, tuple[int, ...]]:
    """A bias for each of these matrices, norms or experts, as wide as what comes out of it."""
    found: dict[str, tuple[int, ...]] = {}
    for name in names:
        shape = shapes[f"{name}.weight"]
        found[f"{name}.bias"] = (shape[0], shape[1]) if len(shape) == 3 else (shape[0],)
    return found


def attention(head: int = QUARTER, kv_heads: int = KV_HEADS) -> dict[str, tuple[int, ...]]:
    return weights(
        attn_norm=(WIDTH,),
        attn_q=(HEADS * head, WIDTH),
        attn_k=(kv_heads * head, WIDTH),
        attn_v=(kv_heads * head, WIDTH),
        attn_output=(WIDTH, HEADS * head),
    )


def fused_attention(kv_heads: int) -> dict[str, tuple[int, ...]]:
    rows = (HEADS + 2 * kv_heads) * QUARTER
    return weights(attn_norm=(WIDTH,), attn_qkv=(rows, WIDTH), attn_output=(WIDTH, WIDTH))


def normed_heads(head: int) -> dict[str, tuple[int, ...]]:
    return weights(attn_q_norm=(head,), attn_k_norm=(head,))


GATED: Final = weights(ffn_norm=(WIDTH,), ffn_gate=(FEED, WIDTH), ffn_up=(FEED, WIDTH), ffn_down=(WIDTH, FEED))
PLAIN: Final = weights(ffn_norm=(WIDTH,), ffn_up=(FEED, WIDTH), ffn_down=(WIDTH, FEED))
FUSED: Final = weights(ffn_norm=(WIDTH,), ffn_up=(2 * FEED, WIDTH), ffn_down=(WIDTH, FEED))
MIXED: Final = weights(
    ffn_norm=(WIDTH,),
    ffn_gate_inp=(EXPERTS, WIDTH),
    ffn_gate_exps=(EXPERTS, EXPERT_FEED, WIDTH),
    ffn_up_exps=(EXPERTS, EXPERT_FEED, WIDTH),
    ffn_down_exps=(EXPERTS, WIDTH, EXPERT_FEED),
)
POST_NORMS: Final = weights(post_attention_norm=(WIDTH,), post_ffw_norm=(WIDTH,))
TIED: Final = weights(token_embd=(VOCAB, WIDTH), output_norm=(WIDTH,))
UNTIED: Final = {**TIED, **weights(output=(VOCAB, WIDTH))}
BIASED_NORM: Final = {"output_norm.bias": (WIDTH,)}


def sizes(*, layers: int = 2, head: int = QUARTER, kv_heads: int = KV_HEADS, **more: Any) -> dict[str, Any]:
    """The metadata that all models with attention have; `__` stands for a dot."""
    return {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": layers,
        "feed_forward_length": FEED,
        "attention.head_count": HEADS,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 3e-3,
        "rope.dimension_count": head,
        "rope.freq_base": 5000.0,
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def layer_norm_sizes(**more: Any) -> dict[str, Any]:
    """The same of a model whose norms subtract the mean."""
    own = sizes(**more)
    del own["attention.layer_norm_rms_epsilon"]
    return {**own, "attention.layer_norm_epsilon": 3e-3}


EXPERT_SIZES: Final = {
    "expert_count": EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": EXPERT_FEED,
}
LLAMA: Final = {**attention(), **GATED}
GEMMA: Final = {**attention(HEAD), **GATED}
_QWEN2: Final = {**LLAMA, **biases(LLAMA, "attn_q", "attn_k", "attn_v")}
_SHARED: Final = weights(
    ffn_gate_inp_shexp=(WIDTH,),
    ffn_gate_shexp=(FEED, WIDTH),
    ffn_up_shexp=(FEED, WIDTH),
    ffn_down_shexp=(WIDTH, FEED),
)
_GPT_OSS: Final = {
    **attention(HEAD),
    **weights(post_attention_norm=(WIDTH,), attn_sinks=(HEADS,)),
    **{name: shape for name, shape in MIXED.items() if name != "ffn_norm.weight"},
}
_GPT2: Final = {**fused_attention(HEADS), **PLAIN}
_FUSED_BIASES: Final = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
_GPT2_BIASES: Final = biases(_GPT2, *_FUSED_BIASES)
_BLOOM: Final = {**_GPT2, **weights(ffn_up=(4 * WIDTH, WIDTH), ffn_down=(WIDTH, 4 * WIDTH))}
_STARCODER2: Final = {**attention(), **PLAIN}
_PLAIN_BIASES: Final = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
_FALCON: Final = {name: shape for name, shape in PLAIN.items() if name != "ffn_norm.weight"}
_NORMED: Final = {"attn_norm.bias": (WIDTH,)}
_COHERE: Final = {**attention(), **{name: shape for name, shape in GATED.items() if name != "ffn_norm.weight"}}
_OLMO2: Final = {
    **attention(),
    **GATED,
    **POST_NORMS,
    **weights(attn_q_norm=(WIDTH,), attn_k_norm=(KV_HEADS * QUARTER,)),
}
_INNER: Final = 2 * WIDTH
_STATE: Final = 8
_RANK: Final = 4
_MAMBA: Final = {
    **weights(
        attn_norm=(WIDTH,),
        ssm_in=(2 * _INNER, WIDTH),
        ssm_conv1d=(_INNER, 4),
        ssm_x=(_RANK + 2 * _STATE, _INNER),
        ssm_dt=(_INNER, _RANK),
        ssm_out=(WIDTH, _INNER),
    ),
    "ssm_conv1d.bias": (_INNER,),
    "ssm_dt.bias": (_INNER,),
    "ssm_a": (_INNER, _STATE),
    "ssm_d": (_INNER,),
}
_MAMBA_SIZES: Final = {
    "context_length": CONTEXT,
    "embedding_length": WIDTH,
    "block_count": 2,
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "attention.layer_norm_rms_epsilon": 3e-3,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": _INNER,
    "ssm.state_size": _STATE,
    "ssm.time_step_rank": _RANK,
}
_MAMBA2_HEADS: Final = 4
_MAMBA2_GROUPS: Final = 2
_MAMBA2_ROWS: Final = _INNER + 2 * _MAMBA2_GROUPS * _STATE
_MAMBA2: Final = {
    **weights(
        attn_norm=(WIDTH,),
        ssm_in=(_INNER + _MAMBA2_ROWS + _MAMBA2_HEADS, WIDTH),
        ssm_conv1d=(_MAMBA2_ROWS, 4),
        ssm_norm=(_MAMBA2_GROUPS, _INNER // _MAMBA2_GROUPS),
        ssm_out=(WIDTH, _INNER),
    ),
    "ssm_conv1d.bias": (_MAMBA2_ROWS,),
    "ssm_dt.bias": (_MAMBA2_HEADS,),
    "ssm_a": (_MAMBA2_HEADS, 1),
    "ssm_d": (_MAMBA2_HEADS, 1),
}
_MAMBA2_SIZES: Final = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": _INNER,
    "ssm.state_size": _STATE,
    "ssm.time_step_rank": _MAMBA2_HEADS,
    "ssm.group_count": _MAMBA2_GROUPS,
}
_DELTA_STATE: Final = 12
_DELTA_HEADS: Final = (2, 6)
"""Of keys, and of values."""
_DELTA_ROWS: Final = (2 * _DELTA_HEADS[0] + _DELTA_HEADS[1]) * _DELTA_STATE
_DELTA_VALUES: Final = _DELTA_HEADS[1] * _DELTA_STATE
_DELTA_SIZES: Final = {
    # llama.cpp norms queries and keys with it too, transformers always with this one.
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": HEAD // 2,
    "rope.dimension_sections": [2, 2, 2, 0],
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.state_size": _DELTA_STATE,
    "ssm.group_count": _DELTA_HEADS[0],
    "ssm.time_step_rank": _DELTA_HEADS[1],
    "ssm.inner_size": _DELTA_VALUES,
}
_DELTA: Final = {
    **weights(
        attn_norm=(WIDTH,),
        post_attention_norm=(WIDTH,),
        attn_qkv=(_DELTA_ROWS, WIDTH),
        attn_gate=(_DELTA_VALUES, WIDTH),
        ssm_conv1d=(_DELTA_ROWS, 4),
        ssm_alpha=(_DELTA_HEADS[1], WIDTH),
        ssm_beta=(_DELTA_HEADS[1], WIDTH),
        ssm_norm=(_DELTA_STATE,),
        ssm_out=(WIDTH, _DELTA_VALUES),
    ),
    "ssm_a": (_DELTA_HEADS[1],),
    "ssm_dt.bias": (_DELTA_HEADS[1],),
}
_GATED_ATTENTION: Final = {
    **attention(HEAD),
    **weights(attn_q=(2 * HEADS * HEAD, WIDTH), post_attention_norm=(WIDTH,)),
    **normed_heads(HEAD),
}
_DRAFTING: Final = {
    **_GATED_ATTENTION,
    "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
    "nextn.shared_head_norm.weight": (WIDTH,),
}
_CONVOLUTION: Final = {
    **weights(attn_norm=(WIDTH,)),
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
    **GATED,
}


def without(shapes: Shapes, *names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name.rpartition(".")[0] not in names}


_PHI2: Final = {**attention(kv_heads=HEADS), **without(PLAIN, "ffn_norm")}
_EXAONE4: Final = {
    **without(attention(), "attn_norm"),
    **without(GATED, "ffn_norm"),
    **POST_NORMS,
    **normed_heads(QUARTER),
}
_GRANITE_MOE_SIZES: Final[dict[str, Any]] = {
    **EXPERT_SIZES,
    "feed_forward_length": EXPERT_FEED,
    "attention.scale": 0.4,
    "embedding_scale": 3.0,
    "residual_scale": 0.6,
    "logit_scale": 2.5,
}
_PER_LAYER: Final = 8
_GEMMA4: Final = {
    **GATED,
    **POST_NORMS,
    **weights(inp_gate=(_PER_LAYER, WIDTH), proj=(WIDTH, _PER_LAYER), post_norm=(WIDTH,), layer_output_scale=(1,)),
}
_GEMMA4_WIDE: Final = {
    **_GEMMA4,
    **weights(ffn_gate=(2 * FEED, WIDTH), ffn_up=(2 * FEED, WIDTH), ffn_down=(WIDTH, 2 * FEED)),
}
_GEMMA4_MIXED: Final = {
    **GATED,
    **POST_NORMS,
    **without(MIXED, "ffn_norm", "ffn_gate_exps", "ffn_up_exps"),
    **weights(
        layer_output_scale=(1,),
        pre_ffw_norm_2=(WIDTH,),
        post_ffw_norm_1=(WIDTH,),
        post_ffw_norm_2=(WIDTH,),
        ffn_gate_up_exps=(EXPERTS, 2 * EXPERT_FEED, WIDTH),
    ),
    "ffn_gate_inp.scale": (WIDTH,),
    "ffn_down_exps.scale": (EXPERTS,),
}
_LOCAL: Final = {**attention(), **normed_heads(QUARTER)}
_WHOLE: Final = {**attention(HEAD), **normed_heads(HEAD)}
_GEMMA4_SIZES: Final = {
    **sizes(head=HEAD, rope__freq_base=1000000.0),
    "attention.key_length_swa": QUARTER,
    "attention.value_length_swa": QUARTER,
    "attention.sliding_window": WINDOW,
    "rope.dimension_count_swa": QUARTER,
    "rope.freq_base_swa": 5000.0,
    "final_logit_softcapping": 9.0,
}
_PART_TURNED: Final = {"rope_freqs.weight": [1.0] * 3 + [1e30] * 9}
"""A fourth of a head, which is two numbers for each frequency."""
_LATENT: Final = 20
_LATENT_TURNED: Final = 8
_LATENT_KEYS: Final = weights(
    attn_norm=(WIDTH,),
    attn_q_a=(_LATENT, WIDTH),
    attn_q_a_norm=(_LATENT,),
    attn_q_b=(HEADS * HEAD, _LATENT),
    attn_kv_a_mqa=(_LATENT + _LATENT_TURNED, WIDTH),
    attn_kv_a_norm=(_LATENT,),
    attn_k_b=(HEADS, _LATENT, HEAD - _LATENT_TURNED),
    attn_v_b=(HEADS, QUARTER, _LATENT),
    attn_output=(WIDTH, HEADS * QUARTER),
)
_SHARED_EXPERT: Final = weights(
    ffn_gate_shexp=(EXPERT_FEED, WIDTH), ffn_up_shexp=(EXPERT_FEED, WIDTH), ffn_down_shexp=(WIDTH, EXPERT_FEED)
)
_LATENT_SIZES: Final = {
    **sizes(layers=3, kv_heads=1),
    # llama.cpp norms latents with it too, transformers always with this one.
    "attention.layer_norm_rms_epsilon": 1e-6,
    **EXPERT_SIZES,
    "attention.key_length": _LATENT + _LATENT_TURNED,
    "attention.value_length": _LATENT,
    "attention.key_length_mla": HEAD,
    "attention.value_length_mla": QUARTER,
    "attention.q_lora_rank": _LATENT,
    "attention.kv_lora_rank": _LATENT,
    "rope.dimension_count": _LATENT_TURNED,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.7,
}
_LATENT_MIXED: Final = {**_LATENT_KEYS, **MIXED, **_SHARED_EXPERT}
_LATENT_GROUPS: Final = {
    **_LATENT_MIXED,
    **{name: (8, *shape[1:]) for name, shape in MIXED.items() if shape[0] == EXPERTS},
    "exp_probs_b.bias": (8,),
}
_LATENT_JOINED: Final = {
    **without(_LATENT_KEYS, "attn_k_b", "attn_v_b"),
    **weights(attn_kv_b=(HEADS * (HEAD - _LATENT_TURNED + QUARTER), _LATENT)),
}
_GLM4_MOE: Final = {
    **attention(HEAD),
    **biases(attention(HEAD), "attn_q", "attn_k", "attn_v"),
    **weights(post_attention_norm=(WIDTH,)),
    **normed_heads(HEAD),
}
YARN: Final = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
TINY: Final[Mapping[str, TinyGguf]] = {
    "llama": TinyGguf("llama", sizes(), (LLAMA,) * 2, UNTIED),
    "llama-tied": TinyGguf("llama", sizes(), (LLAMA,) * 2, TIED),
    "llama-linear": TinyGguf(
        "llama",
        sizes(rope__scaling__type="linear", rope__scaling__factor=3.0),
        (LLAMA,) * 2,
        UNTIED,
    ),
    "llama-yarn": TinyGguf("llama", {**sizes(), **YARN}, (LLAMA,) * 2, UNTIED),
    "llama-3.1": TinyGguf("llama", sizes(), (LLAMA,) * 2, {**UNTIED, "rope_freqs.weight": (QUARTER // 2,)}),
    "mixtral": TinyGguf(
        "llama",
        {**sizes(), **EXPERT_SIZES, "feed_forward_length": EXPERT_FEED},
        ({**attention(), **MIXED},) * 2,
        UNTIED,
    ),
    "qwen2": TinyGguf("qwen2", sizes(), (_QWEN2,) * 2, TIED),
    "qwen2-yarn": TinyGguf("qwen2", {**sizes(), **YARN}, (_QWEN2,) * 2, UNTIED),
    "qwen3": TinyGguf("qwen3", sizes(head=HEAD), ({**GEMMA, **normed_heads(HEAD)},) * 2, TIED),
    "qwen2moe": TinyGguf(
        "qwen2moe",
        {**sizes(), **EXPERT_SIZES, "expert_shared_feed_forward_length": FEED},
        ({**attention(), **biases(LLAMA, "attn_q", "attn_k", "attn_v"), **MIXED, **_SHARED},) * 2,
        UNTIED,
    ),
    "qwen3moe": TinyGguf(
        "qwen3moe",
        {**sizes(head=HEAD), **EXPERT_SIZES},
        ({**attention(HEAD), **MIXED, **normed_heads(HEAD)},) * 2,
        UNTIED,
    ),
    "gemma": TinyGguf("gemma", sizes(head=HEAD), (GEMMA,) * 2, TIED),
    "gemma2": TinyGguf(
        "gemma2",
        sizes(
            head=HEAD,
            attention__sliding_window=WINDOW,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=9.0,
        ),
        ({**GEMMA, **POST_NORMS},) * 2,
        TIED,
    ),
    "gemma3": TinyGguf(
        "gemma3",
        sizes(
            layers=7,
            head=HEAD,
            attention__sliding_window=WINDOW,
            rope__freq_base=1000000.0,
            rope__scaling__type="linear",
            rope__scaling__factor=8.0,
        ),
        ({**GEMMA, **POST_NORMS, **normed_heads(HEAD)},) * 7,
        TIED,
    ),
    "gemma2-27b": TinyGguf(
        # Known by its many layers, as that of Gemma 3.
        "gemma2",
        sizes(layers=46, head=HEAD, attention__sliding_window=WINDOW),
        ({**GEMMA, **POST_NORMS},) * 46,
        TIED,
    ),
    "gemma3-27b": TinyGguf(
        "gemma3",
        sizes(layers=62, head=HEAD, attention__sliding_window=WINDOW),
        ({**GEMMA, **POST_NORMS, **normed_heads(HEAD)},) * 62,
        TIED,
    ),
    "gemma4": TinyGguf(
        "gemma4",
        {
            **_GEMMA4_SIZES,
            "block_count": 6,
            "feed_forward_length": [FEED] * 3 + [2 * FEED] * 3,
            "embedding_length_per_layer_input": _PER_LAYER,
            "attention.shared_kv_layers": 3,
            "attention.sliding_window_pattern": [True, True, False] * 2,
        },
        tuple({**first, **second} for second in (_GEMMA4, _GEMMA4_WIDE) for first in (_LOCAL, _LOCAL, _WHOLE)),
        {
            **TIED,
            **weights(
                per_layer_token_embd=(VOCAB, 6 * _PER_LAYER),
                per_layer_model_proj=(6 * _PER_LAYER, WIDTH),
                per_layer_proj_norm=(_PER_LAYER,),
            ),
        },
        _PART_TURNED,
    ),
    "gemma4-mixed": TinyGguf(
        "gemma4",
        {
            **_GEMMA4_SIZES,
            **EXPERT_SIZES,
            "block_count": 2,
            "attention.head_count_kv": [KV_HEADS, 1],
            "embedding_length_per_layer_input": 0,
            "attention.sliding_window_pattern": [True, False],
        },
        (
            {**_LOCAL, **_GEMMA4_MIXED},
            {**without(_WHOLE, "attn_v"), **weights(attn_k=(HEAD, WIDTH)), **_GEMMA4_MIXED},
        ),
        TIED,
        _PART_TURNED,
    ),
    "phi3": TinyGguf("phi3", sizes(), ({**fused_attention(KV_HEADS), **FUSED},) * 2, UNTIED),
    "phi3-long": TinyGguf(
        "phi3",
        sizes(
            context_length=2 * CONTEXT,
            rope__dimension_count=QUARTER // 2,
            rope__scaling__original_context_length=CONTEXT,
            rope__scaling__attn_factor=1.2,
        ),
        ({**fused_attention(KV_HEADS), **FUSED},) * 2,
        {**UNTIED, "rope_factors_long.weight": (QUARTER // 4,), "rope_factors_short.weight": (QUARTER // 4,)},
    ),
    "granite": TinyGguf(
        "granite",
        sizes(attention__scale=0.4, embedding_scale=3.0, residual_scale=0.6, logit_scale=2.5),
        (LLAMA,) * 2,
        TIED,
    ),
    "gpt-oss": TinyGguf(
        "gpt-oss",
        {**sizes(head=HEAD, attention__sliding_window=WINDOW), **EXPERT_SIZES},
        (
            {
                **_GPT_OSS,
                **biases(_GPT_OSS, "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"),
                **biases(_GPT_OSS, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
            },
        )
        * 2,
        UNTIED,
    ),
    "falcon-7b": TinyGguf(
        "falcon",
        layer_norm_sizes(kv_heads=1),
        ({**fused_attention(1), **_NORMED, **_FALCON},) * 2,
        {**UNTIED, **BIASED_NORM},
    ),
    "falcon-40b": TinyGguf(
        "falcon",
        layer_norm_sizes(),
        (
            {
                **fused_attention(KV_HEADS),
                **_NORMED,
                **weights(attn_norm_2=(WIDTH,)),
                "attn_norm_2.bias": (WIDTH,),
                **_FALCON,
            },
        )
        * 2,
        {**UNTIED, **BIASED_NORM},
    ),
    "starcoder2": TinyGguf(
        "starcoder2",
        layer_norm_sizes(),
        ({**_STARCODER2, **biases(_STARCODER2, *_PLAIN_BIASES)},) * 2,
        {**TIED, **BIASED_NORM},
    ),
    "stablelm": TinyGguf(
        "stablelm",
        layer_norm_sizes(rope__dimension_count=QUARTER // 4, use_parallel_residual=False),
        ({**LLAMA, **biases(LLAMA, "attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v")},) * 2,
        {**UNTIED, **BIASED_NORM},
    ),
    "bloom": TinyGguf(
        "bloom",
        layer_norm_sizes(kv_heads=HEADS, feed_forward_length=4 * WIDTH),
        ({**_BLOOM, **biases(_BLOOM, *_FUSED_BIASES)},) * 2,
        {**TIED, **BIASED_NORM, **weights(token_embd_norm=(WIDTH,)), "token_embd_norm.bias": (WIDTH,)},
    ),
    "gpt2": TinyGguf(
        "gpt2",
        layer_norm_sizes(kv_heads=HEADS),
        ({**_GPT2, **_GPT2_BIASES},) * 2,
        {**TIED, **BIASED_NORM, **weights(position_embd=(CONTEXT, WIDTH))},
    ),
    "gptneox": TinyGguf(
        "gptneox",
        layer_norm_sizes(kv_heads=HEADS, rope__dimension_count=QUARTER // 4, use_parallel_residual=True),
        ({**_GPT2, **_GPT2_BIASES},) * 2,
        {**UNTIED, **BIASED_NORM},
    ),
    "nemotron": TinyGguf(
        "nemotron",
        layer_norm_sizes(rope__dimension_count=QUARTER // 2),
        ({**_STARCODER2, **biases(_STARCODER2, "attn_norm", "ffn_norm")},) * 2,
        {**UNTIED, **BIASED_NORM},
    ),
    "command-r": TinyGguf(
        "command-r",
        layer_norm_sizes(logit_scale=0.5),
        (_COHERE,) * 2,
        TIED,
    ),
    "command-r-plus": TinyGguf(
        "command-r",
        # llama.cpp knows it by its many layers.
        layer_norm_sizes(layers=64, logit_scale=0.5),
        ({**_COHERE, **weights(attn_q_norm=(HEADS, QUARTER), attn_k_norm=(KV_HEADS, QUARTER))},) * 64,
        TIED,
    ),
    "cohere2": TinyGguf(
        "cohere2",
        layer_norm_sizes(layers=4, logit_scale=0.5, attention__sliding_window=WINDOW),
        (_COHERE,) * 4,
        TIED,
    ),
    "glm4": TinyGguf(
        "glm4",
        sizes(head=HEAD, rope__dimension_count=HEAD // 2),
        (
            {
                **attention(HEAD),
                **biases(attention(HEAD), "attn_q", "attn_k", "attn_v"),
                **FUSED,
                **POST_NORMS,
            },
        )
        * 2,
        UNTIED,
    ),
    "smollm3": TinyGguf("smollm3", sizes(layers=4), (LLAMA,) * 4, TIED),
    "olmo2": TinyGguf("olmo2", sizes(), (without(_OLMO2, "attn_norm", "ffn_norm"),) * 2, UNTIED),
    "olmo3": TinyGguf(
        "olmo2",
        {**sizes(layers=4, attention__sliding_window=WINDOW), **YARN},
        (without(_OLMO2, "attn_norm", "ffn_norm"),) * 4,
        UNTIED,
    ),
    "arcee": TinyGguf("arcee", sizes(), ({**attention(), **PLAIN},) * 2, UNTIED),
    "phi2": TinyGguf(
        "phi2",
        layer_norm_sizes(kv_heads=HEADS, rope__dimension_count=QUARTER // 2),
        (
            {
                **_PHI2,
                **biases(_PHI2, "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"),
            },
        )
        * 2,
        {**UNTIED, **BIASED_NORM, "output.bias": (VOCAB,)},
    ),
    "granitemoe": TinyGguf(
        "granitemoe",
        sizes(**_GRANITE_MOE_SIZES),
        ({**attention(), **MIXED},) * 2,
        TIED,
    ),
    "granitemoe-shared": TinyGguf(
        "granitemoe",
        sizes(**_GRANITE_MOE_SIZES, expert_shared_feed_forward_length=FEED),
        ({**attention(), **MIXED, **without(_SHARED, "ffn_gate_inp_shexp")},) * 2,
        TIED,
    ),
    "olmoe": TinyGguf(
        "olmoe",
        {**sizes(kv_heads=HEADS, feed_forward_length=EXPERT_FEED), **EXPERT_SIZES},
        ({**attention(kv_heads=HEADS), **MIXED, **normed_heads(WIDTH)},) * 2,
        UNTIED,
    ),
    "exaone4": TinyGguf("exaone4", sizes(), (_EXAONE4,) * 2, UNTIED),
    "exaone4-32b": TinyGguf(
        "exaone4", sizes(layers=64, attention__sliding_window=WINDOW), (_EXAONE4,) * 64, UNTIED
    ),
    "ernie4_5": TinyGguf("ernie4_5", sizes(head=HEAD), (GEMMA,) * 2, TIED),
    "seed_oss": TinyGguf(
        "seed_oss",
        sizes(head=HEAD),
        (
            {
                **attention(HEAD),
                **biases(attention(HEAD), "attn_q", "attn_k", "attn_v"),
                **weights(post_attention_norm=(WIDTH,)),
                **without(GATED, "ffn_norm"),
            },
        )
        * 2,
        UNTIED,
    ),
    "hunyuan-dense": TinyGguf("hunyuan-dense", sizes(head=HEAD), ({**GEMMA, **normed_heads(HEAD)},) * 2, TIED),
    "mamba": TinyGguf("mamba", _MAMBA_SIZES, (_MAMBA,) * 2, TIED),
    "falcon-mamba": TinyGguf("mamba", {**_MAMBA_SIZES, "ssm.dt_b_c_rms": True}, (_MAMBA,) * 2, TIED),
    "mamba2": TinyGguf("mamba2", {**_MAMBA_SIZES, **_MAMBA2_SIZES}, (_MAMBA2,) * 2, TIED),
    "granitehybrid": TinyGguf(
        "granitehybrid",
        {
            **sizes(attention__scale=0.4, embedding_scale=3.0, residual_scale=0.6, logit_scale=2.5),
            **_MAMBA2_SIZES,
            "attention.head_count_kv": [0, KV_HEADS],
        },
        ({**_MAMBA2, **GATED}, LLAMA),
        TIED,
    ),
    "granitehybrid-mixed": TinyGguf(
        "granitehybrid",
        {
            **sizes(**_GRANITE_MOE_SIZES, expert_shared_feed_forward_length=FEED),
            **_MAMBA2_SIZES,
            "attention.head_count_kv": [0, KV_HEADS],
            "rope.scaling.finetuned": False,
        },
        tuple({**first, **MIXED, **without(_SHARED, "ffn_gate_inp_shexp")} for first in (_MAMBA2, attention())),
        TIED,
    ),
    "lfm2": TinyGguf(
        "lfm2",
        {**sizes(layers=3, shortconv__l_cache=3), "attention.head_count_kv": [0, KV_HEADS, 0]},
        (_CONVOLUTION, {**LLAMA, **normed_heads(QUARTER)}, _CONVOLUTION),
        {**without(TIED, "output_norm"), **weights(token_embd_norm=(WIDTH,))},
    ),
    "qwen35": TinyGguf(
        "qwen35",
        {**sizes(head=HEAD), **_DELTA_SIZES},
        tuple({**first, **without(GATED, "ffn_norm")} for first in (_DELTA, _GATED_ATTENTION)),
        UNTIED,
    ),
    "qwen35-drafting": TinyGguf(
        "qwen35",
        {**sizes(layers=3, head=HEAD), **_DELTA_SIZES, "nextn_predict_layers": 1},
        tuple({**first, **without(GATED, "ffn_norm")} for first in (_DELTA, _GATED_ATTENTION, _DRAFTING)),
        UNTIED,
    ),
    "qwen35moe": TinyGguf(
        "qwen35moe",
        {**sizes(head=HEAD), **_DELTA_SIZES, **EXPERT_SIZES, "expert_shared_feed_forward_length": FEED},
        tuple({**first, **without(MIXED, "ffn_norm"), **_SHARED} for first in (_DELTA, _GATED_ATTENTION)),
        UNTIED,
    ),
    "deepseek2": TinyGguf(
        "deepseek2",
        {**_LATENT_SIZES, "expert_weights_norm": False, "expert_gating_func": 1},
        ({**_LATENT_KEYS, **GATED}, _LATENT_MIXED, _LATENT_MIXED),
        UNTIED,
    ),
    "deepseek3": TinyGguf(
        "deepseek2",
        {
            **_LATENT_SIZES,
            **YARN,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        (
            {**_LATENT_KEYS, **GATED},
            {**_LATENT_MIXED, "exp_probs_b.bias": (EXPERTS,)},
            {**_LATENT_MIXED, "exp_probs_b.bias": (EXPERTS,)},
        ),
        UNTIED,
    ),
    "deepseek3-groups": TinyGguf(
        "deepseek2",
        {
            **_LATENT_SIZES,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        ({**_LATENT_KEYS, **GATED}, _LATENT_GROUPS, _LATENT_GROUPS),
        UNTIED,
    ),
    "deepseek2-joined": TinyGguf(
        # As files had it before the keys and values of a head were apart.
        "deepseek2",
        {
            **{key: size for key, size in _LATENT_SIZES.items() if not key.endswith("_mla")},
            "attention.head_count_kv": HEADS,
            "attention.key_length": HEAD,
            "attention.value_length": QUARTER,
        },
        ({**_LATENT_JOINED, **GATED}, *({**_LATENT_JOINED, **MIXED, **_SHARED_EXPERT},) * 2),
        UNTIED,
    ),
    "glm4moe": TinyGguf(
        "glm4moe",
        {
            **sizes(layers=2, head=HEAD, rope__dimension_count=HEAD // 2),
            **EXPERT_SIZES,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.7,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        (
            {**_GLM4_MOE, **without(GATED, "ffn_norm")},
            {**_GLM4_MOE, **without(MIXED, "ffn_norm"), **_SHARED_EXPERT, "exp_probs_b.bias": (EXPERTS,)},
        ),
        UNTIED,
    ),
    "mistral3": TinyGguf(
        "mistral3",
        {
            **sizes(head=HEAD),
            **YARN,
            # Short, for it counts in steps of it.
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.5,
        },
        (GEMMA,) * 2,
        UNTIED,
    ),
    "lfm2moe": TinyGguf(
        "lfm2moe",
        {
            **sizes(layers=3, shortconv__l_cache=3),
            **EXPERT_SIZES,
            "attention.head_count_kv": [0, KV_HEADS, 0],
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        },
        (
            _CONVOLUTION,
            {**attention(), **normed_heads(QUARTER), **MIXED, "exp_probs_b.bias": (EXPERTS,)},
            {
                **{name: shape for name, shape in _CONVOLUTION.items() if name not in GATED},
                **MIXED,
                "exp_probs_b.bias": (EXPERTS,),
            },
        ),
        {**without(TIED, "output_norm"), **weights(token_embd_norm=(WIDTH,))},
    ),
    "minimax-m2": TinyGguf(
        "minimax-m2",
        {
            **sizes(head=HEAD, rope__dimension_count=HEAD // 2, feed_forward_length=EXPERT_FEED),
            **EXPERT_SIZES,
            "expert_gating_func": 2,
        },
        (
            {
                **attention(HEAD),
                **weights(attn_q_norm=(HEADS * HEAD,), attn_k_norm=(KV_HEADS * HEAD,)),
                **MIXED,
                "exp_probs_b.bias": (EXPERTS,),
            },
        )
        * 2,
        UNTIED,
    ),
}
"""The architectures and, of some, what else their files have."""
