"""The architectures of GGUF files that PyTorch runs: class of transformers, settings, and layout of weights.

Defaults are those of llama.cpp (https://github.com/ggml-org/llama.cpp, src/models), layouts those of its converter
(convert_hf_to_gguf.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_engine.gguf.file import GgufFile
from cosine_protocol.errors import UsageError

Floats = npt.NDArray[np.float32]
Settings = Callable[[GgufFile], dict[str, Any]]
Layout = Callable[[Sequence[Floats], GgufFile], Floats]
"""Makes a weight of transformers from the tensors of a file, mostly a single one."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A `Layout` that only moves whole rows, of numbers or of quantised bytes.

    turns_experts: True if transformers transposes the matrix of each expert. Bytes are not transposed.
    """

    lay: Callable[[Sequence[Any], GgufFile], Any]
    turns_experts: bool = False

    def __call__(self, tensors: Sequence[Floats], model: GgufFile) -> Floats:
        found: Floats = self.lay(tensors, model)
        return np.ascontiguousarray(found.swapaxes(1, 2)) if self.turns_experts else found


GELU: Final = "gelu_pytorch_tanh"


def sizes(model: GgufFile) -> dict[str, Any]:
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
    return {
        **sizes(model),
        "intermediate_size": model.size("feed_forward_length"),
        "rms_norm_eps": model.decimal("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": rope_parameters(model),
        "hidden_act": "silu",
        # Qwen 2 always has biases, without a setting.
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in model.tensors,
    }


TURNED: Final = "rope.dimension_count"
"""The key of the number of rotated dimensions of a head."""


def head_size(model: GgufFile) -> int:
    width = model.size("embedding_length") // model.size("attention.head_count")
    return model.size("attention.key_length", default=width)


def turned_size(model: GgufFile) -> int:
    return model.size(TURNED, default=head_size(model))


def rope_parameters(model: GgufFile) -> dict[str, Any]:
    """The rotary embedding: base, rotated part of a head, and scaling."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": model.decimal("rope.freq_base", 10000.0)}
    turned = turned_size(model) / head_size(model)
    if turned != 1:
        found["partial_rotary_factor"] = turned
    # The oldest files have a factor under another name and no type.
    factor = model.decimal("rope.scaling.factor", model.decimal("rope.scale_linear", 0.0)) or 1.0
    # llama.cpp multiplies cosines and sines by this, in addition to the factor of the scaling type.
    cosines = model.decimal("rope.scaling.attn_factor", 1.0)
    match rope_scaling(model):
        case "linear" if factor != 1:
            found |= {"rope_type": "linear", "factor": factor}
        case "yarn":
            found |= {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained_tokens(model),
                "beta_fast": model.decimal("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": model.decimal("rope.scaling.yarn_beta_slow", 1.0),
                "attention_factor": cosines * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
            }
        case "longrope":
            found |= {
                "rope_type": "longrope",
                "original_max_position_embeddings": trained_tokens(model),
                "attention_factor": cosines,
                **{
                    f"{length}_factor": [float(str(factor)) for factor in model.weight(LONG_ROPE.format(length))]
                    for length in ("short", "long")
                },
            }
    return found


def trained_tokens(model: GgufFile) -> int:
    """Context length before the rotary embedding was scaled."""
    return model.size("rope.scaling.original_context_length", default=model.context_tokens)


LONG_ROPE: Final = "rope_factors_{}.weight"
"""The tensors with the divisor of each frequency, for short and for long texts."""


def rope_scaling(model: GgufFile) -> str:
    """The scaling of the rotary embedding: none, linear, yarn, longrope, or another one in the file."""
    if LONG_ROPE.format("long") in model.tensors:
        return "longrope"
    return str(model.metadata.get(f"{model.architecture}.rope.scaling.type", "linear"))


def _layers(model: GgufFile) -> range:
    """The layer numbers. Raises `UsageError` for an impossible count."""
    count = model.size("block_count")
    if count > len(model.tensors):
        raise UsageError(f"{model.path} claims {count} layers, more than it has tensors; fetch it again.")
    return range(count)


def _count(model: GgufFile, key: str) -> int:
    """A size that may be 0 or missing."""
    return model.size(key) if model.metadata.get(f"{model.architecture}.{key}") else 0


def _window(model: GgufFile) -> int | None:
    return _count(model, "attention.sliding_window") or None


def _layer_kinds(model: GgufFile, *, period: int) -> list[str]:
    """The kind of attention of each layer: as listed in the file, else full for the last layer of each period.

    Raises `UsageError` for a list that is too short.
    """
    key, layers = "attention.sliding_window_pattern", _layers(model)
    has_window = model.metadata.get(f"{model.architecture}.{key}")
    if not isinstance(has_window, list):
        period = model.size(key, default=period)
        has_window = [(layer + 1) % period != 0 for layer in layers]
    if len(has_window) < len(layers) or not all(isinstance(one, int) for one in has_window):
        raise UsageError(f"{model.path} has too short a list of its {model.architecture}.{key}; fetch it again.")
    return ["sliding_attention" if has_window[layer] else "full_attention" for layer in layers]


def _softcap(model: GgufFile, key: str, default: float | None) -> float | None:
    """A bound of scores or logits. None without one."""
    return model.decimal(key, default or 0.0) or None


def _experts(model: GgufFile, *, gating: int = 1) -> dict[str, Any]:
    """The sizes of a mixture under all their names. `gating` in transformers: 1 is softmax, 2 sigmoid."""
    if model.metadata.get(f"{model.architecture}.expert_gating_func", gating) not in (0, gating):
        raise UsageError(f"{model.path} weights its experts in a way that transformers does not in this model.")
    down = model.tensors.get("blk.0.ffn_down_exps.weight")
    width = model.size("expert_feed_forward_length", default=down.shape[0] if down else None)
    return {
        **common_settings(model),
        "num_experts": model.size("expert_count"),
        "num_local_experts": model.size("expert_count"),
        "num_experts_per_tok": model.size("expert_used_count"),
        "moe_intermediate_size": width,
    }


def _gemma(model: GgufFile, *, layers_27b: int) -> dict[str, Any]:
    """Scores are divided by the root of the head size, in the largest model of the hidden size per head."""
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
        "rope_parameters": {
            "full_attention": rope_parameters(model),
            # Never scaled.
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": model.decimal("rope.freq_base_swa", 10000.0),
            },
        },
    }


def _glm4(model: GgufFile) -> dict[str, Any]:
    # The default in transformers is a part of a head.
    return {**common_settings(model), "rope_parameters": {"partial_rotary_factor": 1.0, **rope_parameters(model)}}


def _phi3(model: GgufFile) -> dict[str, Any]:
    # llama.cpp ignores the window, unlike the model's own code.
    return {
        **common_settings(model),
        "sliding_window": _window(model),
        "original_max_position_embeddings": trained_tokens(model),
    }


def _granite(model: GgufFile) -> dict[str, Any]:
    # This key means that it has a rotary embedding.
    if not model.metadata.get("granite.rope.scaling.finetuned", True):
        raise UsageError(f"{model.path} is a Granite without rotary embedding, which transformers lacks.")
    return {
        **common_settings(model),
        "attention_multiplier": model.decimal("attention.scale", head_size(model) ** -0.5),
        "embedding_multiplier": model.decimal("embedding_scale", 1.0),
        "residual_multiplier": model.decimal("residual_scale", 1.0),
        "logits_scaling": model.decimal("logit_scale", 1.0),
    }


def _gpt_oss(model: GgufFile) -> dict[str, Any]:
    experts = _experts(model)
    rope = rope_parameters(model)
    if rope["rope_type"] == "yarn":
        # The model's own code does not round the bounds of the scaling, unlike llama.cpp.
        rope["truncate"] = False
    return {
        **experts,
        "intermediate_size": experts["moe_intermediate_size"],
        "attention_bias": True,
        "rope_parameters": rope,
        "sliding_window": model.size("attention.sliding_window"),
        "layer_types": _layer_kinds(model, period=2),
    }


def _routed(model: GgufFile, *, gating: int) -> dict[str, Any]:
    """The sizes of a mixture with shared experts and dense first layers."""
    return {
        **_experts(model, gating=gating),
        "n_routed_experts": model.size("expert_count"),
        "n_shared_experts": model.size("expert_shared_count"),
        "first_k_dense_replace": _count(model, "leading_dense_block_count"),
        "routed_scaling_factor": model.decimal("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": bool(model.metadata.get(f"{model.architecture}.expert_weights_norm", False)),
        "n_group": _count(model, "expert_group_count") or 1,
        "topk_group": _count(model, "expert_group_used_count") or 1,
    }


def _latent(model: GgufFile, *, gating: int) -> dict[str, Any]:
    turned = model.size(TURNED)
    # Older files lack the keys of separate sizes.
    key = model.size("attention.key_length_mla", default=model.size("attention.key_length"))
    value = model.size("attention.value_length_mla", default=model.size("attention.value_length"))
    rope = rope_parameters(model)
    rope.pop("partial_rotary_factor", None)
    if rope["rope_type"] == "yarn":
        # The factor applies to all scores here, times a tenth of the multiplier in the file.
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


def _mistral3(model: GgufFile) -> dict[str, Any]:
    rope = rope_parameters(model)
    rope["original_max_position_embeddings"] = trained_tokens(model)
    # Queries grow with the logarithm of their position.
    rope["llama_4_scaling_beta"] = model.decimal("attention.temperature_scale", 0.0)
    if rope["rope_type"] == "yarn":
        divisor = model.decimal("rope.scaling.yarn_log_multiplier", 0.0)
        rope["attention_factor"] /= 0.1 * divisor * math.log(max(rope["factor"], 1.0)) + 1.0
    return {**common_settings(model), "rope_parameters": rope}


def _halves(heads: str) -> RowLayout:
    """Reorder the rows of a rotary projection: in transformers the even ones of each head come first.

    `heads` is the key of the number of heads.
    """

    def lay(tensors: Sequence[Floats], model: GgufFile) -> Floats:
        [rows] = tensors
        count = model.size(heads, default=model.size("attention.head_count"))
        pairs = rows.reshape(count, rows.shape[0] // count // 2, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))

    return RowLayout(lay)


def _alone(tensors: Sequence[Any], _: GgufFile) -> Any:
    return tensors[0]


@RowLayout
def _joined(tensors: Sequence[Any], _: GgufFile) -> Any:
    """Gate projections before up projections."""
    return np.concatenate(tensors, axis=1)


def _keys_above_values(tensors: Sequence[Floats], _: GgufFile) -> Floats:
    """The key projection of each head, transposed, above its value projection."""
    keys, values = tensors
    heads = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
    return heads.reshape(-1, heads.shape[-1])


def _in_turn(tensors: Sequence[Any], _: GgufFile) -> Any:
    """Rows of gate and up projections alternate."""
    return np.stack(tensors, axis=2).reshape(len(tensors[0]), -1, *tensors[0].shape[2:])


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model class of transformers.

    layouts: Layouts that differ from the file, by the name of a layer's tensor.
    norms_are_offsets: True if transformers adds one to the weights of a norm; those in the file include it.
    heeds: Keys of `UNHEEDED` that it supports; `TURNED` if it can rotate a part of a head.
    """

    model_type: str
    class_name: str
    settings: Settings = common_settings
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    norms_are_offsets: bool = False
    heeds: tuple[str, ...] = ()


HALVES: Final[Mapping[str, Layout]] = {
    f"attn_{name}.{kind}": _halves(key)
    for name, key in {"q": "attention.head_count", "k": "attention.head_count_kv"}.items()
    for kind in ("weight", "bias")
}
"""llama.cpp rotates pairs of neighbours, and transformers the halves of a head."""
JOINED: Final[Mapping[str, Layout]] = {"ffn_gate_exps.weight": _joined}

LLAMA: Final = Architecture("llama", "LlamaForCausalLM", layouts=HALVES)
MIXTRAL: Final = Architecture("mixtral", "MixtralForCausalLM", _experts, {**HALVES, **JOINED})

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": LLAMA,
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": Architecture(
        "qwen3_moe", "Qwen3MoeForCausalLM", lambda model: {**_experts(model), "norm_topk_prob": True}, JOINED
    ),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", _gemma2, norms_are_offsets=True),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3, norms_are_offsets=True),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _phi3, heeds=(TURNED,)),
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
    "glm4": Architecture("glm4", "Glm4ForCausalLM", _glm4, heeds=(TURNED,)),
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        lambda model: _latent(model, gating=1),
        {**JOINED, "attn_k_b.weight": _keys_above_values},
        heeds=(TURNED, "expert_weights_scale", "rope.scaling.yarn_log_multiplier"),
    ),
    "mistral3": Architecture(
        "ministral3",
        "Ministral3ForCausalLM",
        _mistral3,
        HALVES,
        heeds=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
    ),
}

DEEPSEEK3: Final = replace(
    ARCHITECTURES["deepseek2"],
    model_type="deepseek_v3",
    class_name="DeepseekV3ForCausalLM",
    settings=lambda model: _latent(model, gating=2),
    heeds=(*ARCHITECTURES["deepseek2"].heeds, "expert_group_count"),
)


def architecture_of(model: GgufFile) -> Architecture | None:
    """The architecture of a file. None if PyTorch does not run it."""
    match model.architecture:
        case "deepseek2" if model.metadata.get("deepseek2.expert_gating_func") == 2:
            return DEEPSEEK3
        case "llama" if model.metadata.get("llama.expert_count"):
            return MIXTRAL
    return ARCHITECTURES.get(model.architecture)
