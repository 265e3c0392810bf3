"""Tiny GGUF files with random weights, for each architecture, under llama.cpp's names and as it lays them out.

Nothing here is derived from transformers: shapes and names are those of llama.cpp (src/llama-model.cpp), so that
its own results on these files are an independent reference. The weights are large enough that each of them shows.
"""

import zlib
from collections.abc import Mapping
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
    if kind.endswith("norm.weight"):
        values = 1 + 0.3 * values
    elif kind == "rope_freqs.weight":
        values = 1 + 7 * rng.random(shape)
    elif kind.startswith("rope_factors"):
        values = (3 if "long" in kind else 1) + rng.random(shape)
    elif kind.endswith("bias"):
        values *= 0.3
    elif len(shape) > 1 and kind != "token_embd.weight":
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


def attention(head: int = QUARTER) -> dict[str, tuple[int, ...]]:
    return weights(
        attn_norm=(WIDTH,),
        attn_q=(HEADS * head, WIDTH),
        attn_k=(KV_HEADS * head, WIDTH),
        attn_v=(KV_HEADS * head, WIDTH),
        attn_output=(WIDTH, HEADS * head),
    )


def fused_attention() -> dict[str, tuple[int, ...]]:
    rows = (HEADS + 2 * KV_HEADS) * QUARTER
    return weights(attn_norm=(WIDTH,), attn_qkv=(rows, WIDTH), attn_output=(WIDTH, WIDTH))


def normed_heads(head: int) -> dict[str, tuple[int, ...]]:
    return weights(attn_q_norm=(head,), attn_k_norm=(head,))


GATED: Final = weights(ffn_norm=(WIDTH,), ffn_gate=(FEED, WIDTH), ffn_up=(FEED, WIDTH), ffn_down=(WIDTH, FEED))
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


EXPERT_SIZES: Final = {
    "expert_count": EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": EXPERT_FEED,
}
LLAMA: Final = {**attention(), **GATED}
GEMMA: Final = {**attention(HEAD), **GATED}
_QWEN2: Final = {**LLAMA, **biases(LLAMA, "attn_q", "attn_k", "attn_v")}
_GPT_OSS: Final = {
    **attention(HEAD),
    **weights(post_attention_norm=(WIDTH,), attn_sinks=(HEADS,)),
    **{name: shape for name, shape in MIXED.items() if name != "ffn_norm.weight"},
}


def without(shapes: Shapes, *names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name.rpartition(".")[0] not in names}


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
    "qwen3moe": TinyGguf(
        "qwen3moe",
        {**sizes(head=HEAD), **EXPERT_SIZES},
        ({**attention(HEAD), **MIXED, **normed_heads(HEAD)},) * 2,
        UNTIED,
    ),
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
    "phi3": TinyGguf("phi3", sizes(), ({**fused_attention(), **FUSED},) * 2, UNTIED),
    "phi3-long": TinyGguf(
        "phi3",
        sizes(
            context_length=2 * CONTEXT,
            rope__dimension_count=QUARTER // 2,
            rope__scaling__original_context_length=CONTEXT,
            rope__scaling__attn_factor=1.2,
        ),
        ({**fused_attention(), **FUSED},) * 2,
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
}
"""The architectures and, of some, what else their files have."""
