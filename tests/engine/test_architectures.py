from collections.abc import Container, Mapping
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.forward.support import (
    UnsupportedModel,
    context_tokens,
    model_class_of,
    packed_obstacle,
    refuse_by_config,
)
from cosine_engine.torch.load_self_test import check_exactness
from tests.engine.tiny_models import (
    ARCHITECTURES,
    COMMON,
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    STEPPED,
    VOCAB,
    WINDOWED,
    build,
)
from tests.thoroughness import THOROUGH

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DECODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "decoder_ffn_dim": 128,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 256,
}
ACCEPTED = {
    **ARCHITECTURES,
    **{f"{name}-window": make for name, make in WINDOWED.items()},
    **LATENT,
    **SHARING,
}


def in_dtypes(makes: Mapping[str, Any], of_each_kind: Container[str]) -> list[Any]:
    """Return models: one of each kind runs quickly in float32, others and fewer bits are further cases."""
    return [
        pytest.param(make, dtype, id=f"{name}-{dtype}", marks=marks)
        for name, make in makes.items()
        for dtype in DTYPES
        for steps in [(name not in of_each_kind) + (dtype is not torch.float32)]
        for marks in [[[], [THOROUGH], [pytest.mark.soak]][steps]]
    ]


@pytest.mark.parametrize(("make", "dtype"), in_dtypes(ACCEPTED, {"Llama", "Gemma2-window", "DeepseekV3"}))
def test_the_self_test_accepts_what_works(make: Any, dtype: torch.dtype) -> None:
    check_exactness(build(make()).to(dtype))


REFUSED_BY_CONFIG = {
    "rwkv": (
        lambda: tf.RwkvConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2),
        "does not accept a",
    ),
    "llama4_text": (tf.Llama4TextConfig, "works in chunks"),
    "t5": (tf.T5Config, "encoder-decoder"),
    "bart": (tf.BartConfig, "encoder-decoder"),
    "vit": (tf.ViTConfig, "not a causal language model"),
}


@pytest.mark.parametrize("model_type", REFUSED_BY_CONFIG)
def test_models_are_refused_by_name_before_their_weights_are_read(model_type: str) -> None:
    make, reason = REFUSED_BY_CONFIG[model_type]
    with pytest.raises(UnsupportedModel, match=f"'{model_type}'.*{reason}.*choose a"):
        refuse_by_config(make())


@pytest.mark.parametrize(
    ("make", "obstacle"),
    [
        (ARCHITECTURES["Llama"], None),
        (WINDOWED["Gemma3"], None),
        (OWN_ATTENTION["bloom"], "cannot be replaced"),
        (RECURRENT["lfm2"], "layers of type conv"),
        (STEPPED["mamba"], "recurrent state"),
    ],
)
def test_configurations_tell_what_passes_cannot_be_packed_for(make: Any, obstacle: str | None) -> None:
    config = make()
    refuse_by_config(config)
    found = packed_obstacle(model_class_of(config), config)
    assert found is None if obstacle is None else obstacle in str(found)


def with_stray_window(config: Any) -> Any:
    config.sliding_window = 8
    return config


WRITE_OTHER_TEXT = {
    # The weights of two attentions are subtracted after their softmax.
    "diffllama": lambda: tf.DiffLlamaConfig(**COMMON),
    # Positions are counted from the cache and ignore the caller's.
    "bart": lambda: tf.BartConfig(**DECODER, decoder_layers=2, is_decoder=True, is_encoder_decoder=False),
    # Their own cache drops tokens outside a window, which their attention without a cache sees.
    "moshi": lambda: tf.MoshiConfig(**COMMON, sliding_window=8),
    "olmo2": lambda: with_stray_window(tf.Olmo2Config(**COMMON)),
}


@pytest.mark.parametrize(("make", "dtype"), in_dtypes(WRITE_OTHER_TEXT, {"diffllama", "bart", "olmo2"}))
def test_the_self_test_refuses_models_that_load_and_would_write_other_text(make: Any, dtype: torch.dtype) -> None:
    config = make()
    with pytest.raises(UnsupportedModel, match=f"'{config.model_type}'.*in a self-test"):
        check_exactness(build(config).to(dtype))


def test_stretched_ropes_end_where_they_begin_to_stretch() -> None:
    config = ARCHITECTURES["Llama"]()
    assert context_tokens(config) == 256
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 64,
    }
    assert context_tokens(config) == 64
