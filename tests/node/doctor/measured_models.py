"""Models of 100 to 190 million parameters, with random weights, of architectures whose memory differs."""

from typing import Any, Final

import transformers as tf

COMMON: Final[dict[str, Any]] = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
_EXPERTS: Final[dict[str, Any]] = {**COMMON, "intermediate_size": 1024, "num_hidden_layers": 6}

MODELS: Final[dict[str, tf.PreTrainedConfig]] = {
    "llama": tf.LlamaConfig(**COMMON),
    "qwen3": tf.Qwen3Config(**COMMON, head_dim=128),
    "gemma2": tf.Gemma2Config(**COMMON, head_dim=64),
    "gemma3_text": tf.Gemma3TextConfig(**COMMON, head_dim=64, sliding_window=512),
    "phi3": tf.Phi3Config(**COMMON, pad_token_id=0),
    "gpt2": tf.GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=32_000, n_positions=1024),
    "falcon": tf.FalconConfig(
        vocab_size=32_000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_kv_heads=4,
        new_decoder_architecture=True,
        max_position_embeddings=2048,
    ),
    "mixtral": tf.MixtralConfig(**_EXPERTS, num_local_experts=8),
    "qwen3_moe": tf.Qwen3MoeConfig(
        **_EXPERTS, head_dim=64, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512
    ),
    "qwen3_next": tf.Qwen3NextConfig(
        **_EXPERTS,
        head_dim=64,
        layer_types=["linear_attention", "full_attention"] * 3,
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    "deepseek_v3": tf.DeepseekV3Config(
        **{**_EXPERTS, "num_key_value_heads": 12},
        moe_intermediate_size=512,
        n_routed_experts=16,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=4,
        first_k_dense_replace=1,
        q_lora_rank=256,
        kv_lora_rank=256,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
    ),
}
"""By `model_type`."""
