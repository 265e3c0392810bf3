import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch.load_self_test import check_exactness
from cosine_node.engine.torch.packed_model import PackedModel
from cosine_node.engine.torch.support import (
    UnsupportedModel,
    context_tokens,
    model_class_of,
    packed_obstacle,
    refuse_by_config,
)
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import (
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

TOLERANCE = 1e-5
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
    """Models, one of each kind quickly in float32; all in float32 or these in fewer bits are a step further."""
    return [
        pytest.param(make, dtype, id=f"{name}-{dtype}", marks=marks)
        for name, make in makes.items()
        for dtype in DTYPES
        for steps in [(name not in of_each_kind) + (dtype is not torch.float32)]
        for marks in [[[], [THOROUGH], [pytest.mark.soak]][steps]]
    ]


class Feeder:
    """Sequences fed by hand through a packed model, each in its own stretch of slots."""

    def __init__(self, model: Any, *, pads_rows: bool) -> None:
        self.packed = PackedModel(model, slots=400, pads_rows=pads_rows)
        self.trees = [SequenceTree(sampling=Sampling(), prompt_tokens=0) for _ in range(3)]
        self.used = [0, 0, 0]

    def row(self, sequence: int, tokens: Sequence[int], parents: Sequence[int], first: int = 0) -> Row:
        nodes = tuple(range(first, first + len(tokens)))
        row = Row(sequence, tuple(tokens), nodes, tuple(parents))
        tree = self.trees[sequence]
        start = 130 * sequence + self.used[sequence]
        # Slots run backwards in every other row: their order must not matter.
        slots = list(range(start, start + len(tokens)))[:: 1 if first % 2 else -1]
        self.used[sequence] += len(tokens)
        tree.add(row, slots)
        return row

    def chain(self, sequence: int, tokens: Sequence[int]) -> Row:
        return self.row(sequence, tokens, range(PREFIX, len(tokens) - 1))

    def logits(self, *rows: Row) -> Tensor:
        count = sum(len(row.tokens) for row in rows)
        feeds = [(self.trees[row.sequence], row) for row in rows]
        return self.packed.logits(feeds, wanted=list(range(count)))


def _tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count,), generator=generator).tolist()


def _alone(model: Any, tokens: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.thorough
@pytest.mark.parametrize("pads_rows", [False, True], ids=["in place", "padded"])
@pytest.mark.parametrize("make", ACCEPTED.values(), ids=ACCEPTED)
def test_packed_trees_equal_separate_forwards(make: Any, pads_rows: bool) -> None:
    reference = build(make())
    feeder = Feeder(copy.deepcopy(reference), pads_rows=pads_rows)
    short, long, third = _tokens(17, 1), _tokens(40, 2), _tokens(5, 3)
    packed = feeder.logits(feeder.chain(0, short), feeder.chain(1, long))
    assert _distance(packed[:17], _alone(reference, short)) < TOLERANCE
    assert _distance(packed[17:], _alone(reference, long)) < TOLERANCE
    feeder.trees[0].keep(range(17))
    feeder.trees[1].keep(range(40))
    # A forked tree, a single token, and a prompt in one pass.
    tree = feeder.row(0, [5, 6, 7, 8, 9], [PREFIX, 0, 0, 1, 2])
    single = feeder.chain(1, [11])
    packed = feeder.logits(tree, single, feeder.chain(2, third))
    assert _distance(packed[[0, 2, 4]], _alone(reference, [*short, 5, 7, 9])[-3:]) < TOLERANCE
    assert _distance(packed[[1, 3]], _alone(reference, [*short, 5, 6, 8])[-2:]) < TOLERANCE
    assert _distance(packed[5:6], _alone(reference, [*long, 11])[-1:]) < TOLERANCE
    assert _distance(packed[6:], _alone(reference, third)) < TOLERANCE
    # Children of nodes fed before, one alone and two at once.
    deeper = feeder.row(0, [21, 22, 23], [3, 4, 6], first=5)
    packed = feeder.logits(deeper, feeder.row(1, [12], [0], first=1))
    assert _distance(packed[0], _alone(reference, [*short, 5, 6, 8, 21])[-1]) < TOLERANCE
    assert _distance(packed[1:3], _alone(reference, [*short, 5, 7, 9, 22, 23])[-2:]) < TOLERANCE
    assert _distance(packed[3], _alone(reference, [*long, 11, 12])[-1]) < TOLERANCE


@pytest.mark.parametrize(("make", "dtype"), in_dtypes(ACCEPTED, {"Llama", "Gemma2-window", "DeepseekV3"}))
def test_the_self_test_accepts_what_works(make: Any, dtype: torch.dtype) -> None:
    check_exactness(build(make()).to(dtype))


REFUSED_BY_CONFIG = {
    "rwkv": (lambda: tf.RwkvConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2), "takes no cache"),
    "llama4_text": (tf.Llama4TextConfig, "works in chunks"),
    "t5": (tf.T5Config, "encoder-decoder"),
    "bart": (tf.BartConfig, "encoder-decoder"),
    "vit": (tf.ViTConfig, "no causal language model"),
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
        (RECURRENT["lfm2"], "layers of the kind conv"),
        (STEPPED["mamba"], "recurrent state"),
    ],
)
def test_configurations_tell_what_passes_cannot_be_packed_for(make: Any, obstacle: str | None) -> None:
    config = make()
    refuse_by_config(config)
    found = packed_obstacle(model_class_of(config), config)
    assert found is None if obstacle is None else obstacle in str(found)


TRIED_AND_REFUSED = {
    "mamba": lambda: tf.MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2),
    "lfm2": lambda: tf.Lfm2Config(**COMMON, layer_types=["conv", "full_attention"]),
    "jamba": lambda: tf.JambaConfig(
        **COMMON,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "falcon_h1": lambda: tf.FalconH1Config(
        **COMMON, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=8
    ),
    "lfm2_moe": lambda: tf.Lfm2MoeConfig(
        **COMMON, moe_intermediate_size=64, num_experts=4, layer_types=["conv", "full_attention"]
    ),
    "stablelm": lambda: tf.StableLmConfig(**COMMON),
    "bloom": lambda: tf.BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4),
    "llama4_text": lambda: tf.Llama4TextConfig(
        **COMMON, head_dim=16, intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=8
    ),
}

WRITE_OTHER_TEXT = {
    # The weights of two attentions are subtracted after their softmax.
    "diffllama": lambda: tf.DiffLlamaConfig(**COMMON),
    "hrm_text": lambda: tf.HrmTextConfig(**COMMON),
    # Positions are counted from what is in the cache, whatever the caller says.
    "bart": lambda: tf.BartConfig(**DECODER, decoder_layers=2, is_decoder=True, is_encoder_decoder=False),
    "plbart": lambda: tf.PLBartConfig(**DECODER, decoder_layers=2, is_decoder=True, is_encoder_decoder=False),
    # Their own cache forgets what is outside a window, which their attention without a cache sees.
    "moshi": lambda: tf.MoshiConfig(**COMMON, sliding_window=8),
    "granite": lambda: _with_stray_window(tf.GraniteConfig(**COMMON)),
    "olmo2": lambda: _with_stray_window(tf.Olmo2Config(**COMMON)),
    "gemma": lambda: _with_stray_window(tf.GemmaConfig(**COMMON, head_dim=16)),
}


def _with_stray_window(config: Any) -> Any:
    config.sliding_window = 8
    return config


@pytest.mark.parametrize("model_type", TRIED_AND_REFUSED)
def test_the_self_test_refuses_what_configurations_hide(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{model_type}'"):
        check_exactness(build(TRIED_AND_REFUSED[model_type]()))


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
