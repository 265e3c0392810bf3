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
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter, quantize

VOCAB: Final = 200
WIDTH: Final = 64
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = 24
"""The width of a head where it is not a quarter of the model's."""
QUARTER: Final = WIDTH // HEADS
FEED: Final = 96
EXPERTS: Final = 5
USED: Final = 2
EXPERT_FEED: Final = 32
"""Whole blocks of most kinds."""
CONTEXT: Final = 256
WINDOW: Final = 8
"""Shorter than all texts."""

UINT32: Final = GGUFValueType.UINT32
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by name in NumPy's order: the last dimension is contiguous."""


@dataclass(frozen=True, slots=True)
class TinyGguf:
    """A file to write; `metadata` are the keys of its architecture."""

    architecture: str
    metadata: Mapping[str, Any]
    layers: tuple[Shapes, ...]
    once: Shapes = field(default_factory=dict)
    """The tensors besides the layers'."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {
            **self.once,
            **{f"blk.{n}.{name}": shape for n, layer in enumerate(self.layers) for name, shape in layer.items()},
        }

    def write(self, file: Path, *, matrices: str = "F32") -> Path:
        """Write the file with its matrices in the given type."""
        keys = {"vocab_size": VOCAB, **self.metadata}
        metadata = {f"{self.architecture}.{key}": value for key, value in keys.items()}
        tensors = {name: random_values(name, shape) for name, shape in self.tensors().items()}
        return write_file(file, self.architecture, {**metadata, "tokenizer.ggml.model": "none"}, tensors, matrices)

    def told(self, **metadata: Any) -> "TinyGguf":
        """Return a copy with other metadata; `__` stands for a dot."""
        changed = {name.replace("__", "."): value for name, value in metadata.items()}
        return replace(self, metadata={**self.metadata, **changed})


def write_file(
    file: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[np.float32]],
    matrices: str = "F32",
) -> Path:
    """Write a file in float32 except for matrices of whole blocks."""
    writer = GGUFWriter(str(file), architecture)
    for key, value in metadata.items():
        # As converters write them.
        writer.add_key_value(key, value, UINT32 if type(value) is int else GGUFValueType.get_type(value))
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


def random_values(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the weights of a tensor, which depend on its name only."""
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
    """Return a bias for each of these matrices or experts."""
    return {f"{name}.bias": shapes[f"{name}.weight"][:-1] for name in names}


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


NORMED_HEADS: Final = weights(attn_q_norm=(HEAD,), attn_k_norm=(HEAD,))
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
    """Return the metadata that all models with attention have; `__` stands for a dot."""
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


EXPERT_SIZES: Final[dict[str, Any]] = {
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
YARN: Final[dict[str, Any]] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}


def model(architecture: str, layer: Shapes, once: Shapes = UNTIED, *, layers: int = 2, **metadata: Any) -> TinyGguf:
    """Return a model of equal layers; in the keys of its metadata `__` stands for a dot."""
    return TinyGguf(architecture, sizes(layers=layers, **metadata), (layer,) * layers, once)


def latent(mixed: Shapes, **metadata: Any) -> TinyGguf:
    """Return a model with the keys and values of all heads from one latent; its first layer has no experts."""
    metadata = {key.replace("__", "."): value for key, value in metadata.items()}
    return TinyGguf("deepseek2", {**_LATENT_SIZES, **metadata}, ({**_LATENT_KEYS, **GATED}, mixed, mixed), UNTIED)


_WINDOWED: Final[dict[str, Any]] = {"head": HEAD, "attention__sliding_window": WINDOW}
_GEMMA3: Final = {**GEMMA, **POST_NORMS, **NORMED_HEADS}
_PHI3: Final = {**fused_attention(), **FUSED}
_SIGMOID: Final[dict[str, Any]] = {"expert_weights_norm": True, "expert_gating_func": 2}
TINY: Final[Mapping[str, TinyGguf]] = {
    "llama": model("llama", LLAMA),
    "llama-yarn": model("llama", LLAMA, **YARN),
    "llama-3.1": model("llama", LLAMA, {**UNTIED, "rope_freqs.weight": (QUARTER // 2,)}),
    "mixtral": model("llama", {**attention(), **MIXED}, **EXPERT_SIZES, feed_forward_length=EXPERT_FEED),
    "qwen2": model("qwen2", _QWEN2, TIED),
    "qwen3": model("qwen3", {**GEMMA, **NORMED_HEADS}, TIED, head=HEAD),
    "qwen3moe": model("qwen3moe", {**attention(HEAD), **MIXED, **NORMED_HEADS}, head=HEAD, **EXPERT_SIZES),
    "gemma2": model(
        "gemma2",
        {**GEMMA, **POST_NORMS},
        TIED,
        **_WINDOWED,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=9.0,
    ),
    "gemma3": model(
        "gemma3",
        _GEMMA3,
        TIED,
        layers=7,
        **_WINDOWED,
        rope__freq_base=1000000.0,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    ),
    # The largest ones are known by their many layers.
    "gemma2-27b": model("gemma2", {**GEMMA, **POST_NORMS}, TIED, layers=46, **_WINDOWED),
    "gemma3-27b": model("gemma3", _GEMMA3, TIED, layers=62, **_WINDOWED),
    "phi3": model("phi3", _PHI3),
    "phi3-long": model(
        "phi3",
        _PHI3,
        {**UNTIED, "rope_factors_long.weight": (QUARTER // 4,), "rope_factors_short.weight": (QUARTER // 4,)},
        context_length=2 * CONTEXT,
        rope__dimension_count=QUARTER // 2,
        rope__scaling__original_context_length=CONTEXT,
        rope__scaling__attn_factor=1.2,
    ),
    "granite": model(
        "granite",
        LLAMA,
        TIED,
        attention__scale=0.4,
        embedding_scale=3.0,
        residual_scale=0.6,
        logit_scale=2.5,
    ),
    "gpt-oss": model(
        "gpt-oss",
        {
            **_GPT_OSS,
            **biases(_GPT_OSS, "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"),
            **biases(_GPT_OSS, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
        },
        **_WINDOWED,
        **EXPERT_SIZES,
    ),
    "glm4": model(
        "glm4",
        {**attention(HEAD), **biases(attention(HEAD), "attn_q", "attn_k", "attn_v"), **FUSED, **POST_NORMS},
        head=HEAD,
        rope__dimension_count=HEAD // 2,
    ),
    "deepseek2": latent(_LATENT_MIXED, expert_weights_norm=False, expert_gating_func=1),
    "deepseek3": latent(
        {**_LATENT_MIXED, "exp_probs_b.bias": (EXPERTS,)},
        **YARN,
        **_SIGMOID,
        rope__scaling__yarn_log_multiplier=0.1,
    ),
    "deepseek3-groups": latent(
        _LATENT_GROUPS,
        **_SIGMOID,
        expert_count=8,
        expert_used_count=3,
        expert_group_count=4,
        expert_group_used_count=2,
    ),
    "deepseek2-joined": TinyGguf(
        # The layout of files before the keys and values of a head were separate tensors.
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
    "mistral3": model(
        "mistral3",
        GEMMA,
        head=HEAD,
        # Short, because the temperature changes in steps of it.
        **{**YARN, "rope.scaling.original_context_length": 16},
        rope__scaling__yarn_log_multiplier=1.0,
        attention__temperature_scale=0.5,
    ),
}
"""The architectures, some in several variants."""
