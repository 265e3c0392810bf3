"""A tiny target and a random draft head for it, in float32."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cosine_engine.base import Row
from cosine_engine.eagle.draft_head import EagleHead, HeadShape
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.request import Sampling
from tests.engine.tiny_models import COMMON, VOCAB, tiny_llama

FEATURE_LAYERS = (0, 1, 2)
"""Return the inputs of both layers of the tiny target, and the output of the last."""
SHAPE = HeadShape(
    width=COMMON["hidden_size"],
    target_width=COMMON["hidden_size"],
    heads=4,
    key_heads=2,
    head_width=16,
    feed_forward_width=128,
    feature_layers=FEATURE_LAYERS,
    draft_tokens=150,
    vocab_tokens=VOCAB,
    rope_theta=10_000.0,
    norm_eps=1e-6,
)
NORMED_SHAPE = replace(SHAPE, fc_norm=True, norm_output=True)
"""That of EAGLE 3.1."""
VOCABULARY = DraftVocabulary(tuple(token for token in range(VOCAB) if token % 4 != 3))


def random_head(shape: HeadShape = SHAPE) -> EagleHead:
    torch.manual_seed(0)
    head = EagleHead(shape, VOCABULARY).eval()
    for name, weight in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return head


def embedding_of(target: Any) -> torch.Tensor:
    weight: torch.Tensor = target.get_input_embeddings().weight.detach()
    return weight


def made_of(tokens: Sequence[int]) -> torch.Tensor:
    """Return the activations of the tiny target's layers for a text in one pass."""
    engine = TorchEngine(tiny_llama(), pool_tokens=256, feature_layers=FEATURE_LAYERS)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
    row = Row.chain(sequence, tokens)
    engine.forward([row])
    engine.keep(sequence, row.nodes)
    return engine.activations(sequence, 0, len(tokens)).read()
