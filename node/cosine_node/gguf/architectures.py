"""The architectures of GGUF files that transformers has too: its class for each, its settings, how weights lie.

What a file does not say is what llama.cpp fixes in its code (https://github.com/ggml-org/llama.cpp, src/models).
Where weights lie otherwise its converter moved them (convert_hf_to_gguf.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import UsageError

Floats = npt.NDArray[np.float32]
Settings = Callable[[GgufFile], dict[str, Any]]
Layout = Callable[[Sequence[Floats], GgufFile], Floats]
"""Makes a weight of transformers of the tensors that a file has for it, mostly one."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A `Layout` that puts whole rows elsewhere, and may put those of bytes there as well as those of numbers.

    Where it `turns_experts` transformers has the numbers of each expert turned. Bytes stay rows of a file.
    """

    lay: Callable[[Sequence[Any], GgufFile], Any]
    turns_experts: bool = False

    def __call__(self, tensors: Sequence[Floats], model: GgufFile) -> Floats:
        found: Floats = self.lay(tensors, model)
        return np.ascontiguousarray(found.swapaxes(1, 2)) if self.turns_experts else found


GELU: Final = "gelu_pytorch_tanh"
"""The one that llama.cpp computes."""


def sizes(model: GgufFile) -> dict[str, Any]:
    """The sizes that every model with attention has."""
    heads = model.size("attention.head_count")
    return {
        "vocab_size": model.vocab_tokens,
        "hidden_size": model.size("embedding_length"),
        "num_hidden_layers": model.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": model.size("attention.head_count_kv", default=heads),
        "head_dim": head_size(model),
        "max_position_embeddings": model.context_tokens,
    }


def common_settings(model: GgufFile) -> dict[str, Any]:
    """The settings that most decoders have under the same name."""
    return {
        **sizes(model),
        "intermediate_size": model.size("feed_forward_length"),
        "rms_norm_eps": model.decimal("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": rope_parameters(model),
        "hidden_act": "silu",
        # Qwen 2 always has them, and no setting for it.
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in model.tensors,
    }


def head_size(model: GgufFile) -> int:
    """The width of a head's keys."""
    width = model.size("embedding_length") // model.size("attention.head_count")
    return model.size("attention.key_length", default=width)


def rope_parameters(model: GgufFile) -> dict[str, Any]:
    """The rotary embedding: its base, the part of a head that it turns, and how it is stretched."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": model.decimal("rope.freq_base", 10000.0)}
    turned = model.size("rope.dimension_count", default=head_size(model)) / head_size(model)
    if turned != 1:
        found["partial_rotary_factor"] = turned
    # A factor without a kind is llama.cpp's oldest way, and its name then another.
    factor = model.decimal("rope.scaling.factor", model.decimal("rope.scale_linear", 0.0)) or 1.0
    trained_tokens = model.size("rope.scaling.original_context_length", default=model.context_tokens)
    # What llama.cpp multiplies the cosines and sines by, besides what a kind of stretching does.
    cosines = model.decimal("rope.scaling.attn_factor", 1.0)
    match rope_scaling(model):
        case "linear" if factor != 1:
            found |= {"rope_type": "linear", "factor": factor}
        case "yarn":
            found |= {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained_tokens,
                "beta_fast": model.decimal("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": model.decimal("rope.scaling.yarn_beta_slow", 1.0),
                "attention_factor": cosines * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
            }
        case "longrope":
            found |= {
                "rope_type": "longrope",
                "original_max_position_embeddings": trained_tokens,
                "attention_factor": cosines,
                **{
                    f"{length}_factor": [float(str(factor)) for factor in model.weight(LONG_ROPE.format(length))]
                    for length in ("short", "long")
                },
            }
    return found


def _partly_turned(model: GgufFile) -> dict[str, Any]:
    """The common settings of a kind whose heads transformers turns in part unless it is told otherwise."""
    return {**common_settings(model), "rope_parameters": {"partial_rotary_factor": 1.0, **rope_parameters(model)}}


LONG_ROPE: Final = "rope_factors_{}.weight"
"""The tensors with what each frequency is divided by, in short and in long texts."""


def rope_scaling(model: GgufFile) -> str:
    """How the rotary embedding is stretched: none, linear, yarn, longrope, or what the file says."""
    if LONG_ROPE.format("long") in model.tensors:
        return "longrope"
    return str(model.metadata.get(f"{model.architecture}.rope.scaling.type", "linear"))


def _layers(model: GgufFile) -> range:
    """The numbers of the layers. Raises `UsageError` where there cannot be so many."""
    count = model.size("block_count")
    if count > len(model.tensors):
        raise UsageError(f"{model.path} says that it has {count} layers, more than tensors; fetch it again.")
    return range(count)


def drafting_layers(model: GgufFile) -> int:
    """The last layers, which guess further tokens and which transformers leaves out."""
    count = _count(model, "nextn_predict_layers")
    if count >= len(_layers(model)):
        raise UsageError(f"{model.path} says that all of its layers are for drafting; fetch it again.")
    return count


def _by_layer(model: GgufFile, key: str, default: list[int], *, count: int | None = None) -> list[int]:
    """A number for each layer, or so many, where the file has a list; else the default. Raises `UsageError`."""
    count = len(_layers(model)) if count is None else count
    given = model.metadata.get(f"{model.architecture}.{key}")
    if not isinstance(given, list):
        return default
    if len(given) < count or not all(isinstance(one, int) for one in given):
        raise UsageError(f"{model.path} has too short a list of its {model.architecture}.{key}; fetch it again.")
    return given[:count]


def _count(model: GgufFile, key: str) -> int:
    """A number that may be 0 or missing."""
    return model.size(key) if model.metadata.get(f"{model.architecture}.{key}") else 0


def _window(model: GgufFile) -> int | None:
    """The length of the sliding window in tokens, None where there is none."""
    return _count(model, "attention.sliding_window") or None


def _layer_kinds(model: GgufFile, *, period: int) -> list[str]:
    """The kind of attention of each layer, where the last one of each period has no window."""
    key = "attention.sliding_window_pattern"
    if not isinstance(model.metadata.get(f"{model.architecture}.{key}"), list):
        period = model.size(key, default=period)
    has_window = _by_layer(model, key, [(layer + 1) % period != 0 for layer in _layers(model)])
    return ["sliding_attention" if one else "full_attention" for one in has_window]


def _rope_by_kind(model: GgufFile, *, local_base: float) -> dict[str, Any]:
    """The rotary embeddings of layers that see all of a text and, never stretched, of those with a window."""
    return {
        "full_attention": rope_parameters(model),
        "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
    }


def _layer_norm(model: GgufFile) -> float:
    return model.decimal("attention.layer_norm_epsilon", 1e-5)


def _softcap(model: GgufFile, key: str, default: float | None) -> float | None:
    """A bound of scores or logits, None for none."""
    return model.decimal(key, default or 0.0) or None


def _width_of(model: GgufFile, place: str) -> int | None:
    """What a matrix of the first layer takes in."""
    tensor = model.tensors.get(f"blk.0.{place}.weight")
    return None if tensor is None else tensor.shape[0]


def _experts(model: GgufFile, *, gating: int = 1) -> dict[str, Any]:
    """The sizes of a mixture, under all names that configurations have for them.

    The `gating` that transformers has, by llama.cpp's number, is a softmax (1) or a sigmoid (2).
    """
    if model.metadata.get(f"{model.architecture}.expert_gating_func", gating) not in (0, gating):
        raise UsageError(
            f"{model.path} weights its experts in a way that transformers has not in this architecture."
        )
    width = model.size("expert_feed_forward_length", default=_width_of(model, "ffn_down_exps"))
    return {
        **common_settings(model),
        "num_experts": model.size("expert_count"),
        "num_local_experts": model.size("expert_count"),
        "num_experts_per_tok": model.size("expert_used_count"),
        "moe_intermediate_size": width,
    }


def _gemma(model: GgufFile, *, layers_27b: int) -> dict[str, Any]:
    """Scores are divided by the root of a head's width, in the largest model by that of its part of a token's."""
    width = head_size(model)
    if model.size("block_count") == layers_27b:
        width = model.size("embedding_length") // model.size("attention.head_count")
    gelu = {"hidden_act": GELU, "hidden_activation": GELU}
    return {**common_settings(model), **gelu, "query_pre_attn_scalar": width}


def _gemma2(model: GgufFile) -> dict[str, Any]:
    return {
        **_gemma(model, layers_27b=46),
        "attn_logit_softcapping": _softcap(model, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _softcap(model, "final_logit_softcapping", 30.0),
        "sliding_window": model.size("attention.sliding_window", default=4096),
        "layer_types": _layer_kinds(model, period=2),
    }


def _gemma3(model: GgufFile) -> dict[str, Any]:
    window = _window(model)
    return {
        **_gemma(model, layers_27b=62),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": _softcap(model, "final_logit_softcapping", None),
        "sliding_window": window,
        "layer_types": _layer_kinds(model, period=6 if window else 1),
        "rope_parameters": _rope_by_kind(model, local_base=model.decimal("rope.freq_base_swa", 10000.0)),
    }


def _gemma4(model: GgufFile) -> dict[str, Any]:
    kinds = _layer_kinds(model, period=6)
    layers = _layers(model)
    first = {kind: kinds.index(kind) for kind in kinds}
    local, whole = first.get("sliding_attention", 0), first.get("full_attention", 0)
    kv_heads = _by_layer(model, "attention.head_count_kv", [model.size("attention.head_count_kv") for _ in layers])
    widths = _by_layer(model, "feed_forward_length", [model.size("feed_forward_length") for _ in layers])
    experts = _experts(model) if model.metadata.get("gemma4.expert_count") else {}
    return {
        **_gemma(model, layers_27b=0),
        **experts,
        "enable_moe_block": bool(experts),
        "top_k_experts": experts.get("num_experts_per_tok"),
        "num_key_value_heads": kv_heads[local],
        "num_global_key_value_heads": kv_heads[whole],
        "head_dim": model.size("attention.key_length_swa"),
        "global_head_dim": head_size(model),
        # Layers that see all of a text may use their keys as values.
        "attention_k_eq_v": f"blk.{whole}.attn_v.weight" not in model.tensors,
        "num_kv_shared_layers": sharing_layers(model),
        "intermediate_size": min(widths),
        "use_double_wide_mlp": max(widths) > min(widths),
        "hidden_size_per_layer_input": _count(model, "embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": model.vocab_tokens,
        "final_logit_softcapping": _softcap(model, "final_logit_softcapping", None),
        "sliding_window": _window(model),
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _turned_part(model),
                "rope_theta": model.decimal("rope.freq_base", 10000.0),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": model.decimal("rope.freq_base_swa", 10000.0),
            },
        },
    }


def _turned_part(model: GgufFile) -> float:
    """The part of a head that is turned: the file divides all frequencies beyond it by as good as infinity."""
    factors = model.weight("rope_freqs.weight")
    count = int(np.count_nonzero(factors == 1))
    if not (factors[:count] == 1).all() or not (factors[count:] > 1e20).all():
        raise UsageError(f"{model.path} stretches its rotary embedding in a way that transformers has not.")
    return count / len(factors)


def sharing_layers(model: GgufFile) -> int:
    """The last layers, which have no keys and values of their own."""
    return min(_count(model, "attention.shared_kv_layers"), len(_layers(model)) - 1)


def _phi3(model: GgufFile) -> dict[str, Any]:
    # llama.cpp does without the window, the model's own code has it.
    window = _window(model)
    trained_tokens = model.size("rope.scaling.original_context_length", default=model.context_tokens)
    return {
        **common_settings(model),
        "sliding_window": window,
        "original_max_position_embeddings": trained_tokens,
    }


def _granite(model: GgufFile) -> dict[str, Any]:
    if not _is_turned(model):
        raise UsageError(f"{model.path} is a {model.architecture} that turns no heads, which transformers has not.")
    return _scaled(model)


def _is_turned(model: GgufFile) -> bool:
    """Whether a model of the kind granite has a rotary embedding: this key says so there."""
    return bool(model.metadata.get(f"{model.architecture}.rope.scaling.finetuned", True))


def _granite_hybrid(model: GgufFile) -> dict[str, Any]:
    kv_heads = _by_layer(model, "attention.head_count_kv", [1 for _ in _layers(model)])
    mixed = _experts(model) if _count(model, "expert_count") else {"num_local_experts": 0, "num_experts_per_tok": 0}
    inner, heads = model.size("ssm.inner_size"), model.size("ssm.time_step_rank")
    shared = "expert_shared_feed_forward_length" if _count(model, "expert_count") else "feed_forward_length"
    return {
        **mixed,
        **_scaled(model),
        "layer_types": ["attention" if count else "mamba" for count in kv_heads],
        "position_embedding_type": "rope" if _is_turned(model) else None,
        "shared_intermediate_size": model.size(shared),
        "mamba_n_heads": heads,
        "mamba_n_groups": model.size("ssm.group_count"),
        "mamba_d_state": model.size("ssm.state_size"),
        "mamba_d_head": inner // heads,
        "mamba_d_conv": model.size("ssm.conv_kernel"),
        "mamba_expand": inner // model.size("embedding_length"),
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in model.tensors,
    }


def _scaled(model: GgufFile) -> dict[str, Any]:
    return {
        **common_settings(model),
        "attention_multiplier": model.decimal("attention.scale", head_size(model) ** -0.5),
        "embedding_multiplier": model.decimal("embedding_scale", 1.0),
        "residual_multiplier": model.decimal("residual_scale", 1.0),
        "logits_scaling": model.decimal("logit_scale", 1.0),
    }


def _granite_moe(model: GgufFile) -> dict[str, Any]:
    shared = model.metadata.get("granitemoe.expert_shared_feed_forward_length")
    return {**_experts(model), **_granite(model), **({"shared_intermediate_size": shared} if shared else {})}


def _qwen2_moe(model: GgufFile) -> dict[str, Any]:
    width = model.size("expert_shared_feed_forward_length", default=_width_of(model, "ffn_down_shexp"))
    shared = {"shared_expert_intermediate_size": width}
    return {**_experts(model), **shared, "norm_topk_prob": False, "qkv_bias": True}


def _gpt_oss(model: GgufFile) -> dict[str, Any]:
    experts = _experts(model)
    rope = rope_parameters(model)
    if rope["rope_type"] == "yarn":
        # The model's own code does not round where the stretching begins and ends; llama.cpp does.
        rope["truncate"] = False
    return {
        **experts,
        "intermediate_size": experts["moe_intermediate_size"],
        "attention_bias": True,
        "rope_parameters": rope,
        "sliding_window": model.size("attention.sliding_window"),
        "layer_types": _layer_kinds(model, period=2),
    }


def _falcon(model: GgufFile) -> dict[str, Any]:
    kv_heads = model.size("attention.head_count_kv", default=1)
    # transformers derives the width of a head, and may not be told.
    common = {name: value for name, value in common_settings(model).items() if name != "head_dim"}
    return {
        **common,
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "new_decoder_architecture": kv_heads != 1,
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in model.tensors else 1,
        "parallel_attn": True,
        "alibi": False,
        "bias": False,
        "layer_norm_epsilon": _layer_norm(model),
        "ffn_hidden_size": model.size("feed_forward_length", default=4 * model.size("embedding_length")),
    }


def _starcoder2(model: GgufFile) -> dict[str, Any]:
    common = common_settings(model)
    return {**common, "hidden_act": GELU, "norm_epsilon": _layer_norm(model), "use_bias": True}


def _phi2(model: GgufFile) -> dict[str, Any]:
    return {**_partly_turned(model), "hidden_act": "gelu_new", "layer_norm_eps": _layer_norm(model)}


def _exaone4(model: GgufFile) -> dict[str, Any]:
    window = _window(model)
    kinds = _layer_kinds(model, period=4 if window else 1)
    return {**common_settings(model), "sliding_window": window, "layer_types": kinds}


def _stablelm(model: GgufFile) -> dict[str, Any]:
    return {
        **_partly_turned(model),
        "layer_norm_eps": _layer_norm(model),
        "use_qkv_bias": "blk.0.attn_q.bias" in model.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in model.tensors,
    }


def _gpt_neox(model: GgufFile) -> dict[str, Any]:
    return {
        **_partly_turned(model),
        "hidden_act": "gelu",
        "layer_norm_eps": _layer_norm(model),
        "attention_bias": True,
        "use_parallel_residual": bool(model.metadata.get("gptneox.use_parallel_residual", True)),
    }


def _cohere(model: GgufFile) -> dict[str, Any]:
    return {
        **common_settings(model),
        "layer_norm_eps": _layer_norm(model),
        "logit_scale": model.decimal("logit_scale", 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in model.tensors,
    }


def _cohere2(model: GgufFile) -> dict[str, Any]:
    return {
        **_cohere(model),
        "sliding_window": model.size("attention.sliding_window"),
        "layer_types": _layer_kinds(model, period=4),
    }


def _lfm2(model: GgufFile) -> dict[str, Any]:
    kv_heads = _by_layer(model, "attention.head_count_kv", [1 for _ in _layers(model)])
    return {
        **common_settings(model),
        "norm_eps": model.decimal("attention.layer_norm_rms_epsilon", 1e-5),
        "conv_L_cache": model.size("shortconv.l_cache"),
        "conv_bias": "blk.0.shortconv.in_proj.bias" in model.tensors,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention" if count else "conv" for count in kv_heads],
    }


def _qwen35(model: GgufFile) -> dict[str, Any]:
    sections = _by_layer(model, "rope.dimension_sections", [], count=3)
    common = _partly_turned(model)
    layers = range(len(_layers(model)) - drafting_layers(model))
    period = model.size("full_attention_interval", default=4)
    value_heads = model.size("ssm.time_step_rank")
    return {
        **common,
        "num_hidden_layers": len(layers),
        "layer_types": ["linear_attention" if (layer + 1) % period else "full_attention" for layer in layers],
        "linear_conv_kernel_dim": model.size("ssm.conv_kernel"),
        "linear_key_head_dim": model.size("ssm.state_size"),
        "linear_num_key_heads": model.size("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": model.size("ssm.inner_size") // value_heads,
        "rope_parameters": {**common["rope_parameters"], "mrope_section": sections, "mrope_interleaved": True},
    }


def _qwen35_moe(model: GgufFile) -> dict[str, Any]:
    return {**_qwen2_moe(model), **_qwen35(model)}


def _routed(model: GgufFile, *, gating: int) -> dict[str, Any]:
    """The experts of a mixture that also has some for all tokens, and first layers without any."""
    return {
        **_experts(model, gating=gating),
        "num_hidden_layers": len(_layers(model)) - drafting_layers(model),
        "n_routed_experts": model.size("expert_count"),
        "n_shared_experts": model.size("expert_shared_count"),
        "first_k_dense_replace": _count(model, "leading_dense_block_count"),
        "routed_scaling_factor": model.decimal("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": bool(model.metadata.get(f"{model.architecture}.expert_weights_norm", False)),
        "n_group": _count(model, "expert_group_count") or 1,
        "topk_group": _count(model, "expert_group_used_count") or 1,
    }


def _latent(model: GgufFile, *, gating: int) -> dict[str, Any]:
    turned = model.size("rope.dimension_count")
    # Files from before the keys and values of a head were apart have no names for their sizes.
    key = model.size("attention.key_length_mla", default=model.size("attention.key_length"))
    value = model.size("attention.value_length_mla", default=model.size("attention.value_length"))
    rope = rope_parameters(model)
    rope.pop("partial_rotary_factor", None)
    if rope["rope_type"] == "yarn":
        # What multiplies the cosines of others multiplies all scores here, times a tenth of what the file says.
        rope["mscale_all_dim"] = model.decimal("rope.scaling.yarn_log_multiplier", 0.0) * 10
        rope["attention_factor"] = model.decimal("rope.scaling.attn_factor", 1.0)
    return {
        **_routed(model, gating=gating),
        "num_key_value_heads": model.size("attention.head_count"),
        "head_dim": turned,
        "q_lora_rank": _count(model, "attention.q_lora_rank") or None,
        "kv_lora_rank": model.size("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
        "rope_parameters": rope,
    }


def _glm4_moe(model: GgufFile) -> dict[str, Any]:
    return {
        **_routed(model, gating=2),
        "rope_parameters": _partly_turned(model)["rope_parameters"],
        "use_qk_norm": "blk.0.attn_q_norm.weight" in model.tensors,
    }


def _minimax(model: GgufFile) -> dict[str, Any]:
    experts = _experts(model, gating=2)
    return {**experts, **_partly_turned(model), "intermediate_size": experts["moe_intermediate_size"]}


def _lfm2_moe(model: GgufFile) -> dict[str, Any]:
    return {
        **_experts(model, gating=2),
        **_lfm2(model),
        "num_dense_layers": _count(model, "leading_dense_block_count"),
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def _mistral3(model: GgufFile) -> dict[str, Any]:
    rope = rope_parameters(model)
    trained_tokens = model.size("rope.scaling.original_context_length", default=model.context_tokens)
    rope["original_max_position_embeddings"] = trained_tokens
    # Queries grow with the logarithm of their place.
    rope["llama_4_scaling_beta"] = model.decimal("attention.temperature_scale", 0.0)
    if rope["rope_type"] == "yarn":
        divisor = model.decimal("rope.scaling.yarn_log_multiplier", 0.0)
        rope["attention_factor"] /= 0.1 * divisor * math.log(max(rope["factor"], 1.0)) + 1.0
    return {**common_settings(model), "rope_parameters": rope}


def _olmo3(model: GgufFile) -> dict[str, Any]:
    return {
        **common_settings(model),
        "sliding_window": _window(model),
        "layer_types": _layer_kinds(model, period=4),
        "rope_parameters": _rope_by_kind(model, local_base=model.decimal("rope.freq_base", 10000.0)),
    }


def _mamba(model: GgufFile) -> dict[str, Any]:
    """All settings of a model that has no attention."""
    width = model.size("embedding_length")
    inner = model.size("ssm.inner_size")
    return {
        "vocab_size": model.vocab_tokens,
        "hidden_size": width,
        "num_hidden_layers": model.size("block_count"),
        "max_position_embeddings": model.context_tokens,
        "expand": inner // width,
        "intermediate_size": inner,
        "state_size": model.size("ssm.state_size"),
        "conv_kernel": model.size("ssm.conv_kernel"),
        "time_step_rank": model.size("ssm.time_step_rank"),
        "layer_norm_epsilon": model.decimal("attention.layer_norm_rms_epsilon", 1e-5),
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in model.tensors,
    }


def _mamba2(model: GgufFile) -> dict[str, Any]:
    width, inner, heads = (model.size(key) for key in ("embedding_length", "ssm.inner_size", "ssm.time_step_rank"))
    return {
        "vocab_size": model.vocab_tokens,
        "hidden_size": width,
        "num_hidden_layers": model.size("block_count"),
        "max_position_embeddings": model.context_tokens,
        "expand": inner // width,
        "num_heads": heads,
        "head_dim": inner // heads,
        "n_groups": model.size("ssm.group_count"),
        "state_size": model.size("ssm.state_size"),
        "conv_kernel": model.size("ssm.conv_kernel"),
        "layer_norm_epsilon": model.decimal("attention.layer_norm_rms_epsilon", 1e-5),
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in model.tensors,
    }


def _falcon_mamba(model: GgufFile) -> dict[str, Any]:
    # llama.cpp has one number for all norms.
    return {**_mamba(model), "mixer_rms_eps": model.decimal("attention.layer_norm_rms_epsilon", 1e-5)}


def _halves(heads: str) -> RowLayout:
    """Rows of a rotary projection: transformers has the even ones of each head before the odd ones.

    `heads` is the key of their number.
    """

    def lay(tensors: Sequence[Floats], model: GgufFile) -> Floats:
        [rows] = tensors
        count = model.size(heads, default=model.size("attention.head_count"))
        pairs = rows.reshape(count, rows.shape[0] // count // 2, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))

    return RowLayout(lay)


@RowLayout
def _heads_in_turn(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    """Rows of queries, keys and values: transformers has those of each head together."""
    [rows] = tensors
    heads = model.size("attention.head_count")
    parts = rows.reshape(3, heads, rows.shape[0] // 3 // heads, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(0, 1).reshape(rows.shape))


@RowLayout
def _groups_in_turn(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    """The same, where a group of queries has one head of keys and one of values, and all of it stands together."""
    [rows] = tensors
    groups, width = model.size("attention.head_count_kv", default=1), head_size(model)
    queries, keys, values = (
        part.reshape(groups, -1, width, *rows.shape[1:])
        for part in np.split(rows, [len(rows) - 2 * groups * width, len(rows) - groups * width])
    )
    return np.ascontiguousarray(np.concatenate([queries, keys, values], axis=1).reshape(rows.shape))


def _grouped(more: int = 0) -> RowLayout:
    """Rows of value heads: transformers has those of a key head together, llama.cpp the first ones of all before.

    Before the values stand as many keys and queries as `more` says.
    """

    def lay(tensors: Sequence[Floats], model: GgufFile) -> Floats:
        [rows] = tensors
        keys, values = model.size("ssm.group_count"), model.size("ssm.time_step_rank")
        before = more * keys * model.size("ssm.state_size")
        tiled = rows[before:].reshape(values // keys, keys, -1, *rows.shape[1:])
        grouped = tiled.swapaxes(0, 1).reshape(rows[before:].shape)
        return np.ascontiguousarray(np.concatenate([rows[:before], grouped]))

    return RowLayout(lay)


def _turned(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    """A matrix whose rows are transformers' columns."""
    return np.ascontiguousarray(tensors[0].T)


def _with_axis(axis: int) -> Layout:
    return lambda tensors, _: np.expand_dims(tensors[0], axis)


def _alone(tensors: Sequence[Any], _: GgufFile) -> Any:
    return tensors[0]


@RowLayout
def _joined(tensors: Sequence[Any], _: GgufFile) -> Any:
    """The gates of all experts before what they open."""
    return np.concatenate(tensors, axis=1)


def _keys_above_values(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    """What makes the keys of a head of a latent, which lies turned, above what makes its values."""
    keys, values = tensors
    heads = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
    return heads.reshape(-1, heads.shape[-1])


@RowLayout
def _above(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    """A gate above what it opens."""
    return np.concatenate(tensors)


def _in_turn(tensors: Sequence[Any], _: GgufFile) -> Any:
    """The rows of gates and what they open in turn."""
    return np.stack(tensors, axis=2).reshape(len(tensors[0]), -1, *tensors[0].shape[2:])


def _grouped_inputs(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    return np.ascontiguousarray(_grouped()([tensors[0].T], model).T)


def _grouped_kernels(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    return np.expand_dims(_grouped(2)(tensors, model), 1)


def _grouped_logarithms(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    return _grouped()([_logarithms(tensors, model)], model)


def _flat(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    return tensors[0].reshape(-1)


def _flat_logarithms(tensors: Sequence[Floats], model: GgufFile) -> Floats:
    return _flat([_logarithms(tensors, model)], model)


def _logarithms(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    """Numbers of which the file has the negative exponentials."""
    return np.log(-tensors[0])


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of model of transformers."""

    model_type: str
    class_name: str
    settings: Settings = common_settings
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """By the name of a layer's tensor, of those that lie otherwise there."""
    norms_are_offsets: bool = False
    """True where transformers adds one to the weights of a norm, which the file has with it."""
    heeds: tuple[str, ...] = ()
    """The settings among `UNHEEDED` with which it computes all the same."""


HALVES: Final[Mapping[str, Layout]] = {
    f"attn_{name}.{kind}": _halves(key)
    for name, key in {"q": "attention.head_count", "k": "attention.head_count_kv"}.items()
    for kind in ("weight", "bias")
}
"""Where llama.cpp turns neighbours of a head, and transformers its halves."""
ABOVE: Final[Mapping[str, Layout]] = dict.fromkeys(("ffn_gate_shexp.weight", "ffn_gate.weight"), _above)
MAMBA2: Final[Mapping[str, Layout]] = {
    "ssm_conv1d.weight": _with_axis(1),
    "ssm_a": _flat_logarithms,
    "ssm_d": _flat,
    "ssm_norm.weight": _flat,
}
JOINED: Final[Mapping[str, Layout]] = {"ffn_gate_exps.weight": _joined}
QWEN35: Final[Mapping[str, Layout]] = {
    **dict.fromkeys(("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"), _grouped()),
    "attn_qkv.weight": _grouped(2),
    "ssm_conv1d.weight": _grouped_kernels,
    "ssm_a": _grouped_logarithms,
    "ssm_out.weight": _grouped_inputs,
}
QKV: Final = ("attn_qkv.weight", "attn_qkv.bias")

LLAMA: Final = Architecture("llama", "LlamaForCausalLM", layouts=HALVES)
MIXTRAL: Final = Architecture("mixtral", "MixtralForCausalLM", _experts, {**HALVES, **JOINED})
"""The architecture llama with experts."""

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": LLAMA,
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        _qwen2_moe,
        {**JOINED, "ffn_gate_inp_shexp.weight": _with_axis(0)},
    ),
    "qwen3moe": Architecture(
        "qwen3_moe", "Qwen3MoeForCausalLM", lambda model: {**_experts(model), "norm_topk_prob": True}, JOINED
    ),
    "qwen35": Architecture("qwen3_5_text", "Qwen3_5ForCausalLM", _qwen35, QWEN35, norms_are_offsets=True),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        _qwen35_moe,
        {**QWEN35, **JOINED, "ffn_gate_inp_shexp.weight": _with_axis(0)},
        norms_are_offsets=True,
    ),
    "gemma": Architecture(
        "gemma", "GemmaForCausalLM", lambda model: _gemma(model, layers_27b=0), norms_are_offsets=True
    ),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", _gemma2, norms_are_offsets=True),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3, norms_are_offsets=True),
    "gemma4": Architecture("gemma4_text", "Gemma4ForCausalLM", _gemma4, JOINED),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _phi3),
    "granite": Architecture("granite", "GraniteForCausalLM", _granite, HALVES),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        _gpt_oss,
        {
            "ffn_gate_exps.weight": RowLayout(_in_turn, turns_experts=True),
            "ffn_gate_exps.bias": _in_turn,
            "ffn_down_exps.weight": RowLayout(_alone, turns_experts=True),
        },
    ),
    "falcon": Architecture("falcon", "FalconForCausalLM", _falcon, dict.fromkeys(QKV, _groups_in_turn)),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        _starcoder2,
    ),
    "stablelm": Architecture("stablelm", "StableLmForCausalLM", _stablelm),
    "bloom": Architecture(
        "bloom",
        "BloomForCausalLM",
        lambda model: {**common_settings(model), "layer_norm_epsilon": _layer_norm(model)},
        dict.fromkeys(QKV, _heads_in_turn),
    ),
    "gpt2": Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        lambda model: {
            **common_settings(model),
            "activation_function": "gelu_new",
            "n_inner": model.size("feed_forward_length"),
            "layer_norm_epsilon": _layer_norm(model),
        },
        dict.fromkeys(("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"), _turned),
    ),
    "gptneox": Architecture("gpt_neox", "GPTNeoXForCausalLM", _gpt_neox, dict.fromkeys(QKV, _heads_in_turn)),
    "nemotron": Architecture(
        "nemotron",
        "NemotronForCausalLM",
        lambda model: {**_partly_turned(model), "hidden_act": "relu2", "norm_eps": _layer_norm(model)},
        norms_are_offsets=True,
    ),
    "command-r": Architecture("cohere", "CohereForCausalLM", _cohere),
    "cohere2": Architecture("cohere2", "Cohere2ForCausalLM", _cohere2),
    "glm4": Architecture("glm4", "Glm4ForCausalLM", _partly_turned),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", layouts=HALVES),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM"),
    "arcee": Architecture(
        "arcee",
        "ArceeForCausalLM",
        lambda model: {**common_settings(model), "hidden_act": "relu2"},
        HALVES,
    ),
    "phi2": Architecture("phi", "PhiForCausalLM", _phi2),
    "granitemoe": Architecture("granitemoe", "GraniteMoeForCausalLM", _granite_moe, {**HALVES, **JOINED}),
    "granitehybrid": Architecture(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", _granite_hybrid, {**HALVES, **JOINED, **MAMBA2, **ABOVE}
    ),
    "olmoe": Architecture(
        "olmoe", "OlmoeForCausalLM", lambda model: {**_experts(model), "norm_topk_prob": False}, JOINED
    ),
    "exaone4": Architecture("exaone4", "Exaone4ForCausalLM", _exaone4),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM"),
    "seed_oss": Architecture(
        "seed_oss", "SeedOssForCausalLM", lambda model: {**common_settings(model), "attention_out_bias": False}
    ),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    "mamba2": Architecture("mamba2", "Mamba2ForCausalLM", _mamba2, MAMBA2),
    "mamba": Architecture(
        "mamba",
        "MambaForCausalLM",
        _mamba,
        {"ssm_conv1d.weight": _with_axis(1), "ssm_a": _logarithms},
    ),
    "lfm2": Architecture("lfm2", "Lfm2ForCausalLM", _lfm2, {"shortconv.conv.weight": _with_axis(1)}),
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        lambda model: _latent(model, gating=1),
        {**JOINED, "attn_k_b.weight": _keys_above_values},
        heeds=("expert_weights_scale", "rope.scaling.yarn_log_multiplier"),
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        _glm4_moe,
        JOINED,
        heeds=("expert_weights_scale", "expert_group_count"),
    ),
    "lfm2moe": Architecture(
        "lfm2_moe", "Lfm2MoeForCausalLM", _lfm2_moe, {**JOINED, "shortconv.conv.weight": _with_axis(1)}
    ),
    "mistral3": Architecture(
        "ministral3",
        "Ministral3ForCausalLM",
        _mistral3,
        HALVES,
        heeds=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
    ),
    "minimax-m2": Architecture("minimax_m2", "MiniMaxM2ForCausalLM", _minimax, JOINED),
}
"""By llama.cpp's names."""


DEEPSEEK3: Final = Architecture(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    lambda model: _latent(model, gating=2),
    {**JOINED, "attn_k_b.weight": _keys_above_values},
    heeds=("expert_weights_scale", "expert_group_count", "rope.scaling.yarn_log_multiplier"),
)
"""The architecture deepseek2 with sigmoids for experts."""
OLMO3: Final = Architecture("olmo3", "Olmo3ForCausalLM", _olmo3)
"""The architecture olmo2 with sliding windows."""
GRANITE_SHARED: Final = Architecture(
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    _granite_moe,
    {**HALVES, **JOINED, **ABOVE},
)
"""The architecture granitemoe with an expert that all tokens go through."""
FALCON_MAMBA: Final = Architecture(
    "falcon_mamba", "FalconMambaForCausalLM", _falcon_mamba, ARCHITECTURES["mamba"].layouts
)
"""The architecture mamba with norms inside a layer."""


def architecture_of(model: GgufFile) -> Architecture | None:
    """The architecture of a file; None if transformers is not known to run it."""
    match model.architecture:
        case "deepseek2" if model.metadata.get("deepseek2.expert_gating_func") == 2:
            return DEEPSEEK3
        case "llama" if model.metadata.get("llama.expert_count"):
            return MIXTRAL
        case "olmo2" if _window(model) is not None:
            return OLMO3
        case "granitemoe" if model.metadata.get("granitemoe.expert_shared_feed_forward_length"):
            return GRANITE_SHARED
        case "mamba" if model.metadata.get("mamba.ssm.dt_b_c_rms"):
            return FALCON_MAMBA
    return ARCHITECTURES.get(model.architecture)
