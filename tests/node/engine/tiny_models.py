"""Tiny random models of many architectures, in float32 with eager attention."""

from typing import Any, Final

import torch
import transformers as tf

VOCAB: Final = 200

COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED_LAYERS: Final = ["sliding_attention", "full_attention"]

ARCHITECTURES: Final[dict[str, Any]] = {
    "Llama": lambda: tf.LlamaConfig(**COMMON),
    "Qwen2": lambda: tf.Qwen2Config(**COMMON),
    "Qwen3": lambda: tf.Qwen3Config(**COMMON, head_dim=16),
    "Mistral": lambda: tf.MistralConfig(**COMMON, sliding_window=None),
    "Gemma2": lambda: tf.Gemma2Config(**COMMON, head_dim=16),
    "Gemma3": lambda: tf.Gemma3TextConfig(**COMMON, head_dim=16),
    "GPT2": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    ),
    "GPTNeoX": lambda: tf.GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    ),
    "Phi3": lambda: tf.Phi3Config(**COMMON),
    "Olmo": lambda: tf.OlmoConfig(**COMMON, clip_qkv=8.0),
    "Olmo2": lambda: tf.Olmo2Config(**COMMON),
    "Mixtral": lambda: tf.MixtralConfig(**COMMON, num_local_experts=4),
    "Qwen2Moe": lambda: tf.Qwen2MoeConfig(
        **COMMON,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    ),
    "Qwen3Moe": lambda: tf.Qwen3MoeConfig(
        **COMMON, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64
    ),
    "OPT": lambda: tf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=64,
    ),
    "SmolLM3": lambda: tf.SmolLM3Config(**COMMON),
    "Cohere": lambda: tf.CohereConfig(**COMMON),
    "Granite": lambda: tf.GraniteConfig(**COMMON),
}

WINDOWED: Final[dict[str, Any]] = {
    "Mistral": lambda: tf.MistralConfig(**COMMON, sliding_window=7),
    "Gemma2": lambda: tf.Gemma2Config(**COMMON, head_dim=16, sliding_window=6, layer_types=_MIXED_LAYERS),
    "Gemma3": lambda: tf.Gemma3TextConfig(**COMMON, head_dim=16, sliding_window=5, layer_types=_MIXED_LAYERS),
    "Qwen2": lambda: tf.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=6, layer_types=_MIXED_LAYERS),
    "Phi3": lambda: tf.Phi3Config(**COMMON, sliding_window=6),
    "Mixtral": lambda: tf.MixtralConfig(**COMMON, num_local_experts=4, sliding_window=6),
    "GptOss": lambda: tf.GptOssConfig(
        **COMMON,
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=_MIXED_LAYERS,
    ),
}


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
