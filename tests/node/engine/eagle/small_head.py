"""A tiny target and a random draft head for it, in float32."""

from typing import Any

import torch

from cosine_node.engine.eagle.draft_head import EagleHead, HeadShape
from cosine_node.engine.vocabulary import DraftVocabulary
from tests.node.engine.tiny_models import COMMON, VOCAB, tiny_llama

FEATURE_LAYERS = (0, 1, 2)
"""What enters both layers of the tiny target, and what leaves the last."""
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
VOCABULARY = DraftVocabulary(tuple(token for token in range(VOCAB) if token % 4 != 3))


def random_head(seed: int = 0) -> EagleHead:
    torch.manual_seed(seed)
    return EagleHead(SHAPE, VOCABULARY).eval()


def embedding_of(target: Any) -> torch.Tensor:
    weight: torch.Tensor = target.get_input_embeddings().weight.detach()
    return weight


__all__ = ["FEATURE_LAYERS", "SHAPE", "VOCABULARY", "embedding_of", "random_head", "tiny_llama"]
