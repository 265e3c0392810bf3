"""A GGUF file as a model of transformers: its configuration, and its weights under the names they have there.

Llama's kind, which Mistral and SmolLM are of too, and those of Qwen 2 and 3. Names and the order of rotary weights
are those of llama.cpp's converter: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import UsageError

CLASSES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The architectures that can be read, which transformers calls the same, and its class for each."""
TURNED: Final = frozenset({"llama"})
"""Those of them whose rotary weights the converter reorders: llama.cpp rotates neighbours there."""
MODEL_NAMES: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""The tensors that are there once."""
LAYER_NAMES: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The tensors of a layer."""
ROPE_FACTORS: Final = "rope_freqs.weight"
"""What each rotary frequency is divided by, as Llama 3.1 and later have it."""


def transformers_config(model: GgufFile) -> dict[str, Any]:
    """The config.json that a model's folder would have; of an architecture that cannot be read its sizes alone."""
    heads = model.size("attention.head_count")
    sizes: dict[str, Any] = {
        "model_type": model.architecture,
        "vocab_size": model.vocab_tokens,
        "hidden_size": model.size("embedding_length"),
        "num_hidden_layers": model.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": model.size("attention.head_count_kv", default=heads),
        "head_dim": model.size("attention.key_length", default=model.size("embedding_length") // heads),
        "max_position_embeddings": model.context_tokens,
    }
    if model.architecture not in CLASSES:
        return sizes
    special = {
        f"{name}_token_id": model.metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items()
    }
    return {
        "architectures": [CLASSES[model.architecture]],
        **sizes,
        "intermediate_size": model.size("feed_forward_length"),
        "rms_norm_eps": _decimal(model, "attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": {"rope_type": "default", "rope_theta": _decimal(model, "rope.freq_base", 10000.0)},
        "hidden_act": "silu",
        # Qwen 2 always has them, and no setting for it.
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in model.tensors,
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "dtype": {"F16": "float16", "F32": "float32"}.get(model.weights, "bfloat16"),
        **{name: token for name, token in special.items() if token is not None},
    }


def refuse_others(model: GgufFile) -> None:
    """Raise `UsageError` for an architecture, or a feature of one, that transformers would not be given whole."""
    stretching = model.metadata.get(f"{model.architecture}.rope.scaling.type", "none")
    reasons = {
        f"models of the kind {model.architecture!r} cannot be read, only {', '.join(CLASSES)}": (
            model.architecture not in CLASSES
        ),
        f"its rotary embedding is stretched in the way {stretching!r}": stretching != "none",
        "it has layers of experts": any(name.endswith("_exps.weight") for name in model.tensors),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{model.path} cannot be run from GGUF here: {reason}; use the model's own folder.")


def transformers_weights(model: GgufFile) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The weights of a model under transformers' names, dequantised, one after the other. Raises `UsageError`."""
    heads = model.size("attention.head_count")
    turned = {"attn_q": heads, "attn_k": model.size("attention.head_count_kv", default=heads)}
    for name in model.tensors:
        if name == ROPE_FACTORS:
            continue
        values = model.weight(name)
        layer, _, part = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("", "", name)
        place, _, kind = part.rpartition(".")
        prefix, names = (f"model.layers.{layer}.", LAYER_NAMES) if layer else ("", MODEL_NAMES)
        if place not in names:
            raise UsageError(
                f"{model.path} has a tensor {name}, which is not known in a {model.architecture} model."
            )
        if place in turned and model.architecture in TURNED:
            values = _halves(values, turned[place])
        yield f"{prefix}{names[place]}.{kind}", values


def rope_factors(model: GgufFile) -> npt.NDArray[np.float32] | None:
    """What the model's rotary frequencies are divided by, shape (head size / 2,); None if by nothing."""
    return model.weight(ROPE_FACTORS) if ROPE_FACTORS in model.tensors else None


def _halves(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """The rows of a rotary projection as transformers has them: the even ones of each head before the odd ones."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _decimal(model: GgufFile, key: str, default: float) -> float:
    """A number that the file has in float32, as the decimal it was before: 1e-05, not 9.999999747378752e-06."""
    value = model.metadata.get(f"{model.architecture}.{key}", default)
    if not isinstance(value, int | float):
        raise UsageError(f"{model.path} has a {model.architecture}.{key} that is no number; fetch it again.")
    return float(str(np.float32(value)))
