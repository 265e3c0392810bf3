import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_node.engine.torch.sampling import drawn_together, gumbel_noise, gumbel_rows, noise_bits
from cosine_protocol import noise as reference

CPU = torch.device("cpu")
SEEDS = st.integers(0, (1 << 64) - 1)
POSITIONS = st.integers(-1000, 1 << 20)


@given(seed=SEEDS, position=POSITIONS)
@settings(max_examples=60)
def test_bits_equal_the_reference(seed: int, position: int) -> None:
    bits = noise_bits(seed=seed, position=position, vocab_tokens=80, device=CPU)
    expected = [reference.noise_bits(seed=seed, position=position, token=token) for token in range(80)]
    assert [word & reference.MASK for word in bits.tolist()] == expected


@given(seed=SEEDS, position=POSITIONS)
@settings(max_examples=60)
def test_noise_equals_the_reference_bit_for_bit(seed: int, position: int) -> None:
    noise = gumbel_noise(seed=seed, position=position, vocab_tokens=80, device=CPU)
    assert noise.dtype == torch.float32
    assert noise.tolist() == [reference.gumbel(seed=seed, position=position, token=t) for t in range(80)]


def test_the_largest_seed_is_no_special_case() -> None:
    seed = (1 << 64) - 1
    noise = gumbel_noise(seed=seed, position=0, vocab_tokens=4096, device=CPU)
    assert noise.tolist() == [reference.gumbel(seed=seed, position=0, token=t) for t in range(4096)]


def test_rows_drawn_together_are_those_drawn_one_by_one() -> None:
    places = [(seed, position) for seed in (0, 7, (1 << 64) - 1) for position in range(-2, 9)]
    places += places[:5]
    together = drawn_together(places, vocab_tokens=300, device=CPU)
    assert torch.equal(together, gumbel_rows(places, vocab_tokens=300, device=CPU))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_draws_the_same_noise() -> None:
    for seed in (0, 1, 1 << 63, (1 << 64) - 1):
        here = gumbel_noise(seed=seed, position=5, vocab_tokens=50_000, device=CPU)
        there = gumbel_noise(seed=seed, position=5, vocab_tokens=50_000, device=torch.device("cuda"))
        assert torch.equal(here, there.cpu())
