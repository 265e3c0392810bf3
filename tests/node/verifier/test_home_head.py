"""A draft head as a verifier's own drafter: equal texts, and the right activations for each token."""

from collections.abc import Sequence

import pytest
import torch

from cosine_engine.base import Row, RowResult
from cosine_engine.eagle.head_engine import HeadEngine
from cosine_engine.forward.pass_features import KeptFeatures
from cosine_engine.torch.engine import TorchEngine
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedSwarm
from cosine_node.verifier import home_drafter
from tests.engine.eagle.small_head import FEATURE_LAYERS, embedding_of, made_of, random_head
from tests.engine.tiny_models import tiny_llama
from tests.scenes import in_virtual_time

PROMPT = list(range(3, 33))
TOKENS = 48


class ListeningEngine(HeadEngine):
    """A draft head that records the tokens and activations it reads."""

    def __init__(self) -> None:
        super().__init__(random_head(), embedding_of(tiny_llama()), pool_tokens=4096)
        self.read: list[tuple[int, torch.Tensor]] = []

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        for row in rows:
            if isinstance(row.activations, KeptFeatures):
                self.read += zip(row.tokens, row.activations.read(), strict=True)
        return super().forward(rows)


@in_virtual_time
async def generate(
    home: HeadEngine | None, *, temperature: float = 0.0, requests: int = 1
) -> list[tuple[int, ...]]:
    """Texts by a tiny target, one after the other."""
    async with SimulatedSwarm() as swarm:
        engine = TorchEngine(tiny_llama(), pool_tokens=4096, feature_layers=FEATURE_LAYERS)
        await swarm.verifier(engine, home=None if home is None else SimulatedHome(home, target=engine))
        client = await swarm.client()
        texts = []
        for _ in range(requests):
            run = await client.start(list(PROMPT), max_new_tokens=TOKENS, temperature=temperature, seed=1)
            texts.append(tuple([token async for chunk in run.chunks() for token in chunk.token_ids]))
        return texts


@pytest.fixture(autouse=True)
def tries_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep using a head that is always wrong, to see what it reads."""
    monkeypatch.setattr(home_drafter, "LEAST_TRIED", 0.9)
    monkeypatch.setattr(home_drafter, "OWN_RATE_WEIGHT", 0.0)
    monkeypatch.setattr(home_drafter, "RATE_WEIGHT", 0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(temperature: float) -> None:
    home = ListeningEngine()
    assert generate(home, temperature=temperature) == generate(None, temperature=temperature)
    assert home.read and home.open_sequences <= 1


@pytest.mark.parametrize("requests", [1, 2])
def test_each_token_is_read_once_beside_what_the_target_made_of_the_one_before(requests: int) -> None:
    # The second request finds the prompt and its activations in the target's cache.
    home = ListeningEngine()
    *_, text = generate(home, requests=requests)
    whole = [*PROMPT, *text]
    tokens, seen = zip(*home.read[-len(home.read) // requests :], strict=True)
    assert list(tokens) == whole[1 : 1 + len(tokens)]
    assert torch.allclose(torch.stack(seen), made_of(whole)[: len(tokens)], atol=1e-4)
    assert len(tokens) > len(PROMPT)
