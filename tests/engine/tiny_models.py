"""Tiny random models of many architectures, in float32 with eager attention."""

from typing import Any, Final

import torch
import transformers as tf

from cosine_engine.forward.kv_store import KvStore
from cosine_engine.processor import reads_float16

VOCAB: Final = 200
HELD: Final = "/float16" if reads_float16() else ""
"""The end of the numerics of weights of 16 bits or fewer that nobody asked to be held otherwise, on this CPU."""

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
_ENDS: Final[dict[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2}
COMMON: Final[dict[str, Any]] = {
    **_SIZES,
    **_ENDS,
    "intermediate_size": 128,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
_MIXED_LAYERS: Final = ["sliding_attention", "full_attention"]

ARCHITECTURES: Final[dict[str, Any]] = {
    "Llama": lambda: tf.LlamaConfig(**COMMON),
    "Qwen3": lambda: tf.Qwen3Config(**COMMON, head_dim=16),
    "Gemma2": lambda: tf.Gemma2Config(**COMMON, head_dim=16),
    "Gemma3": lambda: tf.Gemma3TextConfig(**COMMON, head_dim=16),
    "GPT2": lambda: tf.GPT2Config(**_ENDS, vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=256),
    "GPTNeoX": lambda: tf.GPTNeoXConfig(**_SIZES, intermediate_size=128),
    "Olmo2": lambda: tf.Olmo2Config(**COMMON),
    "Mixtral": lambda: tf.MixtralConfig(**COMMON, num_local_experts=4),
    "Qwen3Moe": lambda: tf.Qwen3MoeConfig(
        **COMMON, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64
    ),
    "OPT": lambda: tf.OPTConfig(**_SIZES, ffn_dim=128, word_embed_proj_dim=64),
}

WINDOWED: Final[dict[str, Any]] = {
    "Mistral": lambda: tf.MistralConfig(**COMMON, sliding_window=7),
    "Gemma2": lambda: tf.Gemma2Config(**COMMON, head_dim=16, sliding_window=6, layer_types=_MIXED_LAYERS),
    "Gemma3": lambda: tf.Gemma3TextConfig(**COMMON, head_dim=16, sliding_window=5, layer_types=_MIXED_LAYERS),
    "GptOss": lambda: tf.GptOssConfig(
        **COMMON,
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=_MIXED_LAYERS,
    ),
}

_LATENT: Final[dict[str, Any]] = {
    **COMMON,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}

LATENT: Final[dict[str, Any]] = {
    "DeepseekV3": lambda: tf.DeepseekV3Config(
        **_LATENT,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
    "LongcatFlash": lambda: tf.LongcatFlashConfig(
        **{
            name: value for name, value in _LATENT.items() if name not in ("intermediate_size", "num_hidden_layers")
        },
        head_dim=8,
        num_layers=1,
        ffn_hidden_size=128,
        expert_ffn_hidden_size=32,
        n_routed_experts=4,
        moe_topk=2,
        zero_expert_num=1,
    ),
}
"""Models that make the keys and values of all heads from one latent."""

_SHARING: Final[dict[str, Any]] = {
    **COMMON,
    "num_hidden_layers": 6,
    "head_dim": 16,
    "sliding_window": 6,
    "layer_types": _MIXED_LAYERS * 3,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}
SHARING: Final[dict[str, Any]] = {
    "Gemma3n": lambda: tf.Gemma3nTextConfig(
        **{**_SHARING, "intermediate_size": [128] * 6},
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 6,
        altup_num_inputs=2,
    ),
    "Gemma4": lambda: tf.Gemma4TextConfig(**_SHARING, global_head_dim=16),
}
"""Models of six layers, the last two of which read the keys and values of those before."""

_FALCON: Final[dict[str, Any]] = {**_SIZES, **_ENDS}
_GATED_DELTA: Final[dict[str, Any]] = {
    **COMMON,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}

OWN_ATTENTION: Final[dict[str, Any]] = {
    "falcon-rotary": lambda: tf.FalconConfig(**_FALCON, alibi=False, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-alibi": lambda: tf.FalconConfig(**_FALCON, alibi=True, multi_query=False),
    "bloom": lambda: tf.BloomConfig(**_ENDS, vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4),
    "gpt_neo": lambda: tf.GPTNeoConfig(
        **_ENDS,
        vocab_size=VOCAB,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=256,
        window_size=5,
        attention_types=[[["global", "local"], 1]],
    ),
    "nemotron": lambda: tf.NemotronConfig(**COMMON),
}
"""Models whose attention cannot be replaced."""

RECURRENT: Final[dict[str, Any]] = {
    "qwen3_next": lambda: tf.Qwen3NextConfig(
        **_GATED_DELTA,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    ),
    "qwen3_5": lambda: tf.Qwen3_5TextConfig(**_GATED_DELTA),
    "lfm2": lambda: tf.Lfm2Config(**COMMON, layer_types=["conv", "full_attention"]),
    "falcon_h1": lambda: tf.FalconH1Config(
        **COMMON, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8
    ),
    "mamba2": lambda: tf.Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=16,
        state_size=8,
        n_groups=1,
        chunk_size=8,
    ),
}
"""Models with layers that keep a state, which several tokens at once continue."""

STEPPED: Final[dict[str, Any]] = {
    "mamba": lambda: tf.MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2),
    "jamba": lambda: tf.JambaConfig(
        **COMMON,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
    ),
}
"""Models with layers that forget their state unless one token at a time continues it."""
FLAT_SIZES: Final[dict[str, Any]] = {**COMMON, "intermediate_size": 96}
FLAT: Final[dict[str, Any]] = {
    "llama": lambda: tf.LlamaConfig(**FLAT_SIZES),
    "llama with biases": lambda: tf.LlamaConfig(**FLAT_SIZES, attention_bias=True, mlp_bias=True),
    "llama with wide heads": lambda: tf.LlamaConfig(**FLAT_SIZES, head_dim=32),
    "llama with scaled rotation": lambda: tf.LlamaConfig(
        **FLAT_SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": lambda: tf.MistralConfig(**FLAT_SIZES, sliding_window=5),
    "qwen2 with windows": lambda: tf.Qwen2Config(
        **FLAT_SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": lambda: tf.Qwen3Config(**FLAT_SIZES, head_dim=16),
}
"""Models that the flat decoder knows."""


def build(config: Any, *, seed: int = 1) -> Any:
    """A model with random weights of a configuration; equal seeds give equal weights."""
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = tf.AutoModelForCausalLM.from_config(config).eval()
        # Fresh norms, sinks and biases are constants that would hide a mistake in their use.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def tiny_llama(*, seed: int = 1) -> Any:
    return build(ARCHITECTURES["Llama"](), seed=seed)


def pool_bytes(store: KvStore) -> int:
    """Return the memory of all layers; some share their pages."""
    pages = {id(page): page.nbytes for layer in store._layers.values() for page in layer.pages}
    return sum(pages.values())
