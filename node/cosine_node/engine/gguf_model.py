"""The weights of a GGUF file in a model of transformers, dequantised once, in the engine's dtype."""

from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.transformers_model import rope_factors, transformers_weights
from cosine_protocol.errors import UsageError


def load_gguf_model(file: GgufFile, config: Any, *, dtype: torch.dtype, **options: Any) -> Any:
    """A model of `config`, which was unfolded from the file; `options` are those of `from_pretrained`.

    The config is marked with the type of the stored weights, which `numerics` then names. Raises `UsageError` for a
    file that lacks weights or has others.
    """
    config.gguf_weights = file.weights
    weights = {name: torch.from_numpy(values).to(dtype) for name, values in transformers_weights(file)}
    model, loaded = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True, **options
    )
    for what, names in {"lacks": loaded["missing_keys"], "has an unknown": loaded["unexpected_keys"]}.items():
        if names:
            raise UsageError(f"{file.path} {what} {min(names)}, for a model of the kind {file.architecture}.")
    factors = rope_factors(file)
    if factors is not None:
        rotary = model.get_decoder().rotary_emb
        rotary.inv_freq = rotary.inv_freq / torch.from_numpy(factors).to(rotary.inv_freq)
    return model
