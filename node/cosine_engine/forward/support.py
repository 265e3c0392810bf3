"""The models that the engine supports, and the properties that their configurations declare."""

import inspect
from typing import Any, Final

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from cosine_engine import context_length
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import QUANTISED

ATTENTION_KINDS: Final = frozenset({"full_attention", "sliding_attention", "attention"})
"""Layer types in configurations whose state is keys and values only."""


class UnsupportedModel(UsageError):
    """A model that this engine cannot run exactly."""

    def __init__(self, model_type: str, reason: str) -> None:
        super().__init__(
            f"Models of type '{model_type}' cannot be used: {reason}; choose a decoder-only model with a cache "
            "that transformers knows, such as Llama, Qwen, Mistral, Gemma, Phi or GPT-2."
        )
        self.model_type = model_type
        self.reason = reason


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def refuse_by_config(config: Any) -> None:
    """Raise `UnsupportedModel` if a configuration shows that its model is not supported."""
    if config.is_encoder_decoder:
        raise UnsupportedModel(config.model_type, "it is an encoder-decoder model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(config.model_type, "it is not a causal language model")
    if cache_parameter(model_class_of(config)) is None:
        raise UnsupportedModel(config.model_type, "it does not accept a transformers cache")
    if getattr(config.get_text_config(), "attention_chunk_size", None):
        raise UnsupportedModel(config.model_type, "its attention works in chunks")


def model_class_of(config: Any) -> Any:
    """Return the class of a model that `refuse_by_config` accepts."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def packed_obstacle(model_class: Any, config: Any) -> str | None:
    """Return the reason why an accepted model needs its own attention and cache; None if there is none.

    `config` is the model's own configuration, or that of its files, of which the model may be a part.
    """
    if getattr(model_class, "_is_stateful", False):
        return "it keeps a recurrent state"
    foreign = sorted(set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENTION_KINDS)
    if foreign:
        return f"it has layers of type {', '.join(foreign)}"
    # transformers checks this before it replaces a model's attention.
    if not model_class._can_set_attn_implementation():
        return "its attention cannot be replaced"
    return None


def cache_parameter(model_class: Any) -> str | None:
    """Return the name of the cache parameter of a model's forward; None if there is none."""
    parameters = inspect.signature(model_class.forward).parameters
    # "cache" exists since transformers 5.24.
    return next((name for name in ("past_key_values", "cache_params", "cache") if name in parameters), None)


def context_tokens(config: Any) -> int:
    """Return the maximum sequence length at which a token does not depend on the rest of the pass."""
    text = config.get_text_config()
    return context_length.context_tokens({name: getattr(text, name, None) for name in context_length.FACTS})


def numerics(model: Any) -> str:
    """Return a model's dtype and quantisation, for example `bfloat16/int8`. Near-ties depend on both."""
    return numerics_of(model.dtype, getattr(model.config, "gguf_weights", None), quantisation_of(model.config))


def numerics_of(dtype: Any, stored: str | None, quantisation: str | None) -> str:
    """Return the numerics of a model that computes in a PyTorch dtype, for example `gguf:Q4_1+float32/float16`.

    `stored` is the type of most weights of a GGUF file, whose values differ from those of the original model.
    """
    name = ("" if stored is None else f"gguf:{stored}+") + str(dtype).removeprefix("torch.")
    return name if quantisation is None else f"{name}{QUANTISED}{quantisation}"


def quantisation_of(config: Any) -> str | None:
    """Return the quantisation of a model's weights: int8 or int4 if applied at load, else the stored method."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return None
    # torchao's names for the quantisations that `cosine_engine.torch.loading` applies.
    match type(getattr(quantisation, "quant_type", None)).__name__:
        case "Int8WeightOnlyConfig":
            return "int8"
        case "Int4WeightOnlyConfig":
            return "int4"
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation.quant_method
    return str(getattr(method, "value", method))
