"""Tiny configurations of all kinds of causal language models in transformers."""

import inspect
from typing import Any, Final

import transformers as tf

from tests.engine.tiny_models import ARCHITECTURES, OWN_ATTENTION, RECURRENT, STEPPED, VOCAB, WINDOWED

SIZES: Final[dict[str, Any]] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(
        (
            "hidden_size",
            "n_embd",
            "d_model",
            "dim",
            "emb_dim",
            "embedding_size",
            "word_embed_proj_dim",
            "embed_dim",
        ),
        64,
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim", "encoder_ffn_dim", "dff"),
        128,
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_decoder_layers", "encoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_experts_intermediate_size", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "conv_L_cache"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 16),
    "hidden_size_per_layer_input": 16,
    "linear_num_heads": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "q_lora_rank": 32,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields of configurations for the size of a model, and those that select a language model."""
WINDOW: Final = 8
"""Shorter than the texts of the survey."""

_QWEN4_INDEXER: Final = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    },
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cpmant": {"dim_ff": 128, "dim_head": 16},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "dots3_note_text": {
        "index_head_dim": 16,
        "index_n_heads": 2,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 32,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"zero_expert_num": 2, "head_dim": 8},
    "recurrent_gemma": {"lru_width": 64, "block_types": ["recurrent", "attention"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "roc_bert": {"shape_embed_dim": 32, "pronunciation_embed_dim": 32, "shape_vocab_size": VOCAB},
    "qwen4_exp": _QWEN4_INDEXER,
    "qwen4_exp_text": _QWEN4_INDEXER,
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""Additional fields of some kinds."""


UNTRIED: Final = {
    "dots3_note": "no small configuration of it is accepted",
    "gemma3n": "its part for images needs the package timm",
    "gemma4_assistant": "it continues the hidden states of another model",
}
"""The kinds without a tiny model, with the reason."""


def tiny_configs(model_type: str) -> list[Any]:
    """Return small configurations of a kind: those of the tests, or one of `SIZES`."""
    made = [make() for make in (*ARCHITECTURES.values(), *WINDOWED.values())]
    made += [make() for make in (OWN_ATTENTION | RECURRENT | STEPPED).values()]
    found = [config for config in made if config.model_type == model_type]
    if found:
        return found
    config_class = tf.CONFIG_MAPPING[model_type]
    return [config_class(**tiny_fields(config_class))]


def tiny_fields(config_class: Any) -> dict[str, Any]:
    """Return the fields of a small configuration with a layer of each kind that the default one has."""
    names = inspect.signature(config_class.__init__).parameters
    usual = config_class()
    fields = {name: size for name, size in SIZES.items() if name in names}
    fields |= {name: SIZES[name] for name in ("is_decoder", "is_encoder_decoder")}
    for name in ("sliding_window", "attention_window_size"):
        if name in names and isinstance(getattr(usual, name, None), int):
            fields[name] = WINDOW
    kinds = {
        name: list(dict.fromkeys(getattr(usual, name)))
        for name in ("layer_types", "mlp_layer_types", "layers_block_type")
        if name in names and getattr(usual, name, None)
    }
    if kinds:
        layers = max(2, *map(len, kinds.values()))
        fields |= {name: (found * layers)[:layers] for name, found in kinds.items()}
        fields["num_hidden_layers"] = layers
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        # Compressed keys have as many heads as queries.
        fields["num_key_value_heads"] = SIZES["num_attention_heads"]
    for name in config_class.sub_configs:
        # A field may name one of several kinds.
        part = getattr(usual, name)
        if part is not None:
            fields[name] = {"model_type": part.model_type} | tiny_fields(type(part))
    return fields | FIELDS.get(config_class.model_type, {})
