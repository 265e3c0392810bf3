"""The pool stores shared parts of layers once, and each token takes the memory that its layers state."""

from typing import Any

import pytest
import torch

from cosine_engine.forward.kv_store import KvStore
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.torch.engine import TorchEngine
from cosine_protocol.errors import LocalProtocolError
from tests.engine.tiny_models import LATENT, SHARING, build, pool_bytes

FLOAT32_BYTES = 4


def states(heads: int, width: int) -> torch.Tensor:
    return torch.ones(1, heads, 1, width)


def test_of_a_token_a_model_keeps_its_latents_alone_and_shared_keys_once() -> None:
    latent: Any = LATENT["DeepseekV3"]()
    layer_bytes = (latent.kv_lora_rank + latent.qk_rope_head_dim) * FLOAT32_BYTES
    engine = TorchEngine(build(latent), pool_tokens=64)
    assert pool_bytes(engine._passes.store) == (64 + 1) * latent.num_hidden_layers * layer_bytes
    for make in SHARING.values():
        config: Any = make()
        engine = TorchEngine(build(config), pool_tokens=64)
        layers = config.num_hidden_layers - config.num_kv_shared_layers
        layer_bytes = 2 * config.num_key_value_heads * config.head_dim * FLOAT32_BYTES
        assert pool_bytes(engine._passes.store) == (64 + 1) * layers * layer_bytes


def test_parts_of_a_store_are_its_own_slots_counted_from_their_first() -> None:
    store = KvStore(slots=8 * PAGE_TOKENS)
    latent = states(1, 4)
    store.layer(0, latent, latent)
    store.layer(1, states(2, 8), states(2, 6), window=5)
    for number, first in enumerate((0, 4), 1):
        part = store.part(first_slot=first * PAGE_TOKENS, slots=4 * PAGE_TOKENS)
        keys, values = part.layer(0, latent, latent)
        assert keys is values
        keys.fill_(number)
        for stored in part.layer(1, states(2, 8), states(2, 6), window=5):
            stored.fill_(number)
        assert part.token_bytes == store.token_bytes
    for stored in (store.layer(0, latent, latent).keys, store.layer(1, latent, latent, window=5).values):
        assert stored[0, 0, :, 0].tolist() == [1.0] * 64 + [2.0] * 64 + [0.0]
    with pytest.raises(LocalProtocolError):
        store.part(first_slot=5 * PAGE_TOKENS, slots=4 * PAGE_TOKENS)
