"""A draft head as a verifier's own drafter: the same text; each token beside what the target made of the last."""

from collections.abc import Sequence

import pytest
import torch

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.eagle.head_engine import EagleEngine
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.verifier import home_drafter
from cosine_node.verifier.home_drafter import SeenText
from cosine_protocol.request import Sampling
from tests.node.engine.eagle.small_head import FEATURE_LAYERS, embedding_of, random_head
from tests.node.engine.tiny_models import tiny_llama

PROMPT = list(range(3, 33))
TOKENS = 48


class ListeningEngine(EagleEngine):
    """A draft head that notes the tokens it reads beside activations, and these."""

    def __init__(self) -> None:
        super().__init__(random_head(), embedding_of(tiny_llama()), pool_tokens=4096)
        self.read: list[tuple[int, object]] = []

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        for row in rows:
            self.read += zip(row.tokens, row.activations, strict=False)
        return super().forward(rows)


def generate(home: EagleEngine | None, *, temperature: float = 0.0, requests: int = 1) -> list[tuple[int, ...]]:
    """Texts by a tiny target, one after the other."""

    async def run() -> list[tuple[int, ...]]:
        async with SimulatedSwarm() as swarm:
            engine = TorchEngine(tiny_llama(), pool_tokens=4096, feature_layers=FEATURE_LAYERS)
            await swarm.verifier(engine, home_engine=home, home_reads_target=True)
            client = await swarm.client()
            texts = []
            for _ in range(requests):
                run = await client.start(PROMPT, max_new_tokens=TOKENS, temperature=temperature, seed=1)
                texts.append(tuple([token async for chunk in run.chunks() for token in chunk.token_ids]))
            return texts

    return run_virtual(run())


@pytest.fixture(autouse=True)
def tries_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a head that is always wrong be asked on: here it matters what it reads."""
    monkeypatch.setattr(home_drafter, "LEAST_TRIED", 0.9)
    monkeypatch.setattr(home_drafter, "OWN_RATE_WEIGHT", 0.0)
    monkeypatch.setattr(home_drafter, "RATE_WEIGHT", 0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(temperature: float) -> None:
    home = ListeningEngine()
    assert generate(home, temperature=temperature) == generate(None, temperature=temperature)
    assert home.read and home.open_sequences <= 1


def test_each_token_is_read_once_beside_what_the_target_made_of_the_one_before() -> None:
    home = ListeningEngine()
    [text] = generate(home)
    whole = [*PROMPT, *text]
    engine = TorchEngine(tiny_llama(), pool_tokens=256, feature_layers=FEATURE_LAYERS)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(PROMPT))
    made = engine.forward([Row.chain(sequence, whole)])[0].activations
    tokens, seen = zip(*home.read, strict=True)
    assert list(tokens) == whole[1 : 1 + len(tokens)]
    expected = torch.stack(made[: len(tokens)])  # type: ignore[arg-type]  # tensors
    assert torch.allclose(torch.stack(seen), expected, atol=1e-4)
    assert len(tokens) > len(PROMPT)


def test_a_prompt_whose_beginning_is_cached_is_read_from_there() -> None:
    seen = SeenText()
    seen.note(16, ["p16", "p17"])
    seen.note(18, ["p18"])
    assert (seen.end, len(seen), seen.last(2)) == (19, 3, ("p17", "p18"))


def test_what_is_fed_again_is_noted_once() -> None:
    seen = SeenText()
    seen.note(0, ["a", "b", "c"])
    seen.note(0, ["a", "b"])
    seen.note(1, ["b", "c", "d"])
    assert seen.last(9) == ("a", "b", "c", "d")


def test_what_follows_a_gap_is_all_that_counts() -> None:
    seen = SeenText()
    seen.note(0, ["a"])
    seen.note(5, ["f"])
    assert (seen.end, seen.last(9)) == (6, ("f",))


def test_only_the_end_of_a_long_text_is_kept() -> None:
    seen = SeenText()
    seen.note(0, list(range(home_drafter.MAX_SEEN_TOKENS + 5)))
    assert len(seen) == home_drafter.MAX_SEEN_TOKENS
    assert seen.last(1) == (home_drafter.MAX_SEEN_TOKENS + 4,)
