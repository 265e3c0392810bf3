"""The architectures of GGUF files that PyTorch runs: the class of transformers, its settings, how weights lie.

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


TURNED: Final = "rope.dimension_count"
"""The key of how many numbers of a head the rotary embedding turns."""


def head_size(model: GgufFile) -> int:
    """The width of a head's keys."""
    width = model.size("embedding_length") // model.size("attention.head_count")
    return model.size("attention.key_length", default=width)


def turned_size(model: GgufFile) -> int:
    """The numbers of a head that the rotary embedding turns."""
    return model.size(TURNED, default=head_size(model))


def rope_parameters(model: GgufFile) -> dict[str, Any]:
    """The rotary embedding: its base, the part of a head that it turns, and how it is stretched."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": model.decimal("rope.freq_base", 10000.0)}
    turned = turned_size(model) / head_size(model)
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


def _count(model: GgufFile, key: str) -> int:
    """A number that may be 0 or missing."""
    return model.size(key) if model.metadata.get(f"{model.architecture}.{key}") else 0


def _window(model: GgufFile) -> int | None:
    """The length of the sliding window in tokens, None where there is none."""
    return _count(model, "attention.sliding_window") or None


def _layer_kinds(model: GgufFile, *, period: int) -> list[str]:
    """The kind of attention of each layer: what the file lists, else the last one of each period has no window.

    Raises `UsageError` for a list that is no whole one.
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
    """A bound of scores or logits, None for none."""
    return model.decimal(key, default or 0.0) or None


def _experts(model: GgufFile, *, gating: int = 1) -> dict[str, Any]:
    """The sizes of a mixture, under all names that configurations have for them.

    The `gating` that transformers has, by llama.cpp's number, is a softmax (1) or a sigmoid (2).
    """
    if model.metadata.get(f"{model.architecture}.expert_gating_func", gating) not in (0, gating):
        raise UsageError(
            f"{model.path} weights its experts in a way that transformers has not in this architecture."
        )
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
        "rope_parameters": {
            "full_attention": rope_parameters(model),
            # Never stretched.
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": model.decimal("rope.freq_base_swa", 10000.0),
            },
        },
    }


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
    # This key says whether it has a rotary embedding.
    if not model.metadata.get("granite.rope.scaling.finetuned", True):
        raise UsageError(f"{model.path} is a granite that turns no heads, which transformers has not.")
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


def _routed(model: GgufFile, *, gating: int) -> dict[str, Any]:
    """The experts of a mixture that also has some for all tokens, and first layers without any."""
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


def _in_turn(tensors: Sequence[Any], _: GgufFile) -> Any:
    """The rows of gates and what they open in turn."""
    return np.stack(tensors, axis=2).reshape(len(tensors[0]), -1, *tensors[0].shape[2:])


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
    """The settings among `UNHEEDED` with which it computes all the same; `TURNED` if it can turn heads in part."""


HALVES: Final[Mapping[str, Layout]] = {
    f"attn_{name}.{kind}": _halves(key)
    for name, key in {"q": "attention.head_count", "k": "attention.head_count_kv"}.items()
    for kind in ("weight", "bias")
}
"""Where llama.cpp turns neighbours of a head, and transformers its halves."""
JOINED: Final[Mapping[str, Layout]] = {"ffn_gate_exps.weight": _joined}

LLAMA: Final = Architecture("llama", "LlamaForCausalLM", layouts=HALVES)
MIXTRAL: Final = Architecture("mixtral", "MixtralForCausalLM", _experts, {**HALVES, **JOINED})
"""The architecture llama with experts."""

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
    "glm4": Architecture("glm4", "Glm4ForCausalLM", _partly_turned, heeds=(TURNED,)),
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
"""By llama.cpp's names."""


DEEPSEEK3: Final = Architecture(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    lambda model: _latent(model, gating=2),
    {**JOINED, "attn_k_b.weight": _keys_above_values},
    heeds=(TURNED, "expert_weights_scale", "expert_group_count", "rope.scaling.yarn_log_multiplier"),
)
"""The architecture deepseek2 with sigmoids for experts."""


def architecture_of(model: GgufFile) -> Architecture | None:
    """The architecture of a file; None for one that PyTorch is not given."""
    match model.architecture:
        case "deepseek2" if model.metadata.get("deepseek2.expert_gating_func") == 2:
            return DEEPSEEK3
        case "llama" if model.metadata.get("llama.expert_count"):
            return MIXTRAL
    return ARCHITECTURES.get(model.architecture)
