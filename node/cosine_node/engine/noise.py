"""Keyed Gumbel noise of a whole vocabulary at once; `cosine_protocol.noise` is the reference it must equal.

The 64-bit words live in int64 tensors: products wrap around, and logical shifts are arithmetic shifts with
the copied sign bits masked off.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from cosine_node.engine.draft_vocabulary import RESERVED_NOISE, DraftVocabulary
from cosine_protocol.noise import GAMMA, MIX_A, MIX_B, position_key

SeedPosition = tuple[int, int]
"""A seed and an output position: all that the noise of a token depends on."""

REUSED_POSITIONS: Final = 128
"""Bounds memory: noise vectors kept. The siblings of a tree and the next pass need the same positions again."""
DRAWN_ROWS: Final = 16
"""Bounds memory: rows drawn at a time on a GPU, whose intermediates are float64."""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shift_right(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(words: Tensor) -> Tensor:
    words = (words ^ _shift_right(words, 30)) * _signed(MIX_A)
    words = (words ^ _shift_right(words, 27)) * _signed(MIX_B)
    return words ^ _shift_right(words, 31)


@lru_cache(maxsize=8)
def _token_steps(vocab_tokens: int, vocabulary: DraftVocabulary | None, device: torch.device) -> Tensor:
    ids = range(vocab_tokens) if vocabulary is None else vocabulary.target_ids
    return (torch.tensor(ids, dtype=torch.int64, device=device) + 1) * _signed(GAMMA)


def noise_bits(*, seed: int, position: int, vocab_tokens: int, device: torch.device) -> Tensor:
    """The hash words of every token at one output position: int64 [vocab], the reference's bits as signed.

    `seed` is any whole number from 0 to 2**64 - 1; `position` may be negative (inside the prompt).
    """
    key = _signed(position_key(seed=seed, position=position))
    return _mix64(_token_steps(vocab_tokens, None, device) + key)


def _drawn(
    keys: Sequence[int], *, vocab_tokens: int, vocabulary: DraftVocabulary | None, device: torch.device
) -> Tensor:
    """Noise of whole vocabularies, float32 [keys, vocab]; of a reduced one that of the target's ids."""
    # MPS has no float64, so its noise is made on the CPU.
    where = torch.device("cpu") if device.type == "mps" else device
    column = torch.tensor(keys, dtype=torch.int64, device=where)[:, None]
    bits = _mix64(_token_steps(vocab_tokens, vocabulary, where) + column)
    uniform = (_shift_right(bits, 11).to(torch.float64) + 0.5) * 2.0**-53
    noise = uniform.log_().neg_().log_().neg_().to(torch.float32).to(device)
    return F.pad(noise, (0, vocab_tokens - noise.shape[1]), value=RESERVED_NOISE)


@lru_cache(maxsize=REUSED_POSITIONS)
def gumbel_noise(
    *,
    seed: int,
    position: int,
    vocab_tokens: int,
    device: torch.device,
    vocabulary: DraftVocabulary | None = None,
) -> Tensor:
    """Standard Gumbel noise of every token at one output position: float32 [vocab], shared, read-only.

    A drafter's own ids have the noise of the target's ids in its `vocabulary`, reserved ones `RESERVED_NOISE`.
    The logarithms are the device's own in float64, good to an ulp of theirs, before the one rounding to
    float32.
    """
    key = _signed(position_key(seed=seed, position=position))
    return _drawn([key], vocab_tokens=vocab_tokens, vocabulary=vocabulary, device=device)[0]


def gumbel_rows(
    seed_positions: Sequence[SeedPosition],
    *,
    vocab_tokens: int,
    device: torch.device,
    vocabulary: DraftVocabulary | None = None,
) -> Tensor:
    """The noise at several output positions, float32 [seed_positions, vocab], as `gumbel_noise` gives it."""
    if device.type == "cuda":
        return drawn_together(seed_positions, vocab_tokens=vocab_tokens, device=device, vocabulary=vocabulary)
    rows = [
        gumbel_noise(seed=s, position=p, vocab_tokens=vocab_tokens, device=device, vocabulary=vocabulary)
        for s, p in seed_positions
    ]
    return torch.stack(rows)


def drawn_together(
    seed_positions: Sequence[SeedPosition],
    *,
    vocab_tokens: int,
    device: torch.device,
    vocabulary: DraftVocabulary | None = None,
) -> Tensor:
    """The result of `gumbel_rows`, drawn anew a few rows at a time: few launches rather than a cache."""
    rank = {seed_position: i for i, seed_position in enumerate(dict.fromkeys(seed_positions))}
    keys = [_signed(position_key(seed=seed, position=position)) for seed, position in rank]
    blocks = [
        _drawn(keys[start : start + DRAWN_ROWS], vocab_tokens=vocab_tokens, vocabulary=vocabulary, device=device)
        for start in range(0, len(keys), DRAWN_ROWS)
    ]
    return torch.cat(blocks)[[rank[seed_position] for seed_position in seed_positions]]
